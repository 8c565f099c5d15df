import java.nio.file.Files;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;

/**
 * An app of Kafka Streams that counts words, with a test of it: it writes lines, reads the counts, and
 * prints them. Arguments: BOOTSTRAP PREFIX GUARANTEE.
 */
public class WordCount {
    private static final List<String> LINES =
        List.of("a rose is a rose", "is a rose", "so it is", "a daisy is no rose");

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], prefix = arguments[1];
        String lines = prefix + "-lines", counts = prefix + "-counts";
        create(bootstrap, lines, counts);
        try (KafkaStreams app = new KafkaStreams(topology(lines, counts), settings(bootstrap, prefix, arguments[2]))) {
            write(bootstrap, lines);
            app.start();
            System.out.println(read(bootstrap, counts));
            app.close(Duration.ofSeconds(30));
        }
    }

    private static void create(String bootstrap, String... topics) throws Exception {
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap))) {
            List<NewTopic> all = new ArrayList<>();
            for (String each : topics) all.add(new NewTopic(each, 2, (short) 1));
            admin.createTopics(all).all().get();
        }
    }

    private static Topology topology(String lines, String counts) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(lines)
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word)
            .count(Materialized.as("words"))
            .toStream().mapValues(String::valueOf)
            .to(counts, Produced.with(Serdes.String(), Serdes.String()));
        return builder.build();
    }

    private static Properties settings(String bootstrap, String prefix, String guarantee) throws Exception {
        Properties found = new Properties();
        found.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        found.put(StreamsConfig.APPLICATION_ID_CONFIG, prefix);
        found.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, guarantee);
        found.put(StreamsConfig.STATE_DIR_CONFIG, Files.createTempDirectory("streams").toString());
        found.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        found.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        found.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        found.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);  // each count is a record
        found.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        return found;
    }

    private static void write(String bootstrap, String lines) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (String each : LINES) producer.send(new ProducerRecord<>(lines, "k", each));
        }
    }

    /** The last count of each word, when there have been as many as there are words. */
    private static Map<String, Integer> read(String bootstrap, String counts) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "group.id", counts,
            "auto.offset.reset", "earliest", "isolation.level", "read_committed");
        int left = String.join(" ", LINES).split(" ").length;
        Map<String, Integer> found = new TreeMap<>();
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(counts));
            long until = System.currentTimeMillis() + 60_000;
            while (left > 0 && System.currentTimeMillis() < until) {
                for (var each : consumer.poll(Duration.ofMillis(200))) {
                    found.merge(each.key(), Integer.valueOf(each.value()), Math::max);
                    left--;
                }
            }
        }
        if (left != 0) throw new IllegalStateException(left + " counts are missing: " + found);
        return found;
    }
}

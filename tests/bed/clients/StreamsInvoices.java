import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.time.*;
import java.util.*;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.api.*;

/**
 * Invoices of orders, by Kafka Streams: grouped by customer in a topic of its own, and added up in a store.
 * Arguments: BOOTSTRAP PREFIX GUARANTEE CHANGE; what the app is to do is in orders.py.
 */
public class StreamsInvoices {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final Serde<JsonNode> JSON = Serdes.serdeFrom(
        (topic, node) -> node == null ? null : bytes(node), (topic, data) -> data == null ? null : node(data));

    private final String prefix, change;
    private final AtomicBoolean isThrown = new AtomicBoolean();

    StreamsInvoices(String prefix, String change) {
        this.prefix = prefix;
        this.change = change;
    }

    public static void main(String[] arguments) throws Exception {
        String change = arguments.length > 3 ? arguments[3] : "";
        String guarantee = change.equals("commit-first") ? StreamsConfig.AT_LEAST_ONCE : arguments[2];
        Topology topology = new StreamsInvoices(arguments[1], change).topology();
        KafkaStreams app = new KafkaStreams(topology, settings(arguments[0], arguments[1], guarantee));
        app.setUncaughtExceptionHandler(error -> StreamThreadExceptionResponse.REPLACE_THREAD);
        var leaving = CloseOptions.groupMembershipOperation(CloseOptions.GroupMembershipOperation.LEAVE_GROUP);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> app.close(leaving.withTimeout(Duration.ofSeconds(20)))));
        app.start();
    }

    private static Properties settings(String bootstrap, String prefix, String guarantee) throws Exception {
        Properties found = new Properties();
        found.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        found.put(StreamsConfig.APPLICATION_ID_CONFIG, prefix + "billing");
        found.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, guarantee);
        found.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        found.put(StreamsConfig.STATE_DIR_CONFIG, Files.createTempDirectory("streams").toString());
        found.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        return found;
    }

    private Topology topology() {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(prefix + "orders", Consumed.with(Serdes.String(), JSON)).split()
            .branch((key, order) -> order.get("total").asDouble() < 0 && !change.equals("topic"),
                Branched.withConsumer(all -> all.to(prefix + "rejected", Produced.with(Serdes.String(), JSON))))
            .defaultBranch(Branched.withConsumer(all -> all
                .groupBy((key, order) -> order.get("customer").asText(), Grouped.with(Serdes.String(), JSON))
                .aggregate(MAPPER::createObjectNode, this::invoice, Materialized.with(Serdes.String(), JSON))
                .toStream()
                .process(Changed::new)
                .to(prefix + "invoices", Produced.with(Serdes.String(), JSON))));
        return builder.build();
    }

    private JsonNode invoice(String customer, JsonNode order, JsonNode before) {
        double total = before.path("total").asDouble() + order.get("total").asDouble();
        ObjectNode found = MAPPER.createObjectNode().put("id", UUID.randomUUID().toString());
        found.set("order", order.get("id"));
        return found.put("at", Instant.now().toString()).put("total", total);
    }

    /** Does what the change says to the first invoice. */
    private class Changed extends ContextualProcessor<String, JsonNode, String, JsonNode> {
        public void process(org.apache.kafka.streams.processor.api.Record<String, JsonNode> record) {
            boolean isFirst = record.key().equals("c0");
            if (isFirst && change.equals("abort") && isThrown.compareAndSet(false, true)) throw new IllegalStateException("abort");
            if (isFirst && change.equals("header-missing")) record.headers().remove("trace");
            int times = !isFirst ? 1 : change.equals("drop") ? 0 : change.equals("double") ? 2 : 1;
            for (; times > 0; times--) context().forward(isFirst && change.equals("wrong-key") ? record.withKey("c0x") : record);
        }
    }

    private static byte[] bytes(JsonNode node) {
        try {
            return MAPPER.writeValueAsBytes(node);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static JsonNode node(byte[] data) {
        try {
            return MAPPER.readTree(data);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}

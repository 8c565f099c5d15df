package shop;

import java.time.Instant;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.annotation.Bean;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.*;
import org.springframework.util.backoff.FixedBackOff;

/**
 * Invoices of orders, by Spring Boot: three tries of each, then the dead letter topic. Arguments: PREFIX
 * KIND CHANGE, with the KIND `plain` or `transactional`; what the app is to do is in orders.py.
 */
@SpringBootApplication
public class SpringInvoices {
    public record Order(String customer, UUID id, Instant at, double total) {}
    public record Invoice(UUID id, UUID order, Instant at, double total) {}

    private final KafkaTemplate<String, Object> template;
    private final String prefix, change;
    private final Set<String> failed = new HashSet<>();

    SpringInvoices(KafkaTemplate<String, Object> template, @Value("${prefix}") String prefix,
                   @Value("${change}") String change) {
        this.template = template;
        this.prefix = prefix;
        this.change = change;
    }

    public static void main(String[] arguments) {
        var properties = new Properties();
        properties.put("prefix", arguments[0]);
        properties.put("change", arguments.length > 2 ? arguments[2] : "");
        properties.put("spring.main.banner-mode", "off");
        properties.put("logging.level.root", "off");
        properties.put("spring.kafka.consumer.auto-offset-reset", "earliest");
        properties.put("spring.kafka.consumer.value-deserializer",
            "org.springframework.kafka.support.serializer.JacksonJsonDeserializer");
        properties.put("spring.kafka.consumer.properties.spring.json.value.default.type", Order.class.getName());
        properties.put("spring.kafka.producer.value-serializer",
            "org.springframework.kafka.support.serializer.JacksonJsonSerializer");
        if (arguments[1].equals("transactional"))
            properties.put("spring.kafka.producer.transaction-id-prefix", arguments[0] + "billing-");
        boolean never = properties.get("change").equals("no-commit");
        properties.put("spring.kafka.listener.ack-mode", never ? "manual" : "record");
        new SpringApplicationBuilder(SpringInvoices.class).properties(properties).run();
    }

    @KafkaListener(topics = "${prefix}orders", groupId = "${prefix}billing")
    void invoice(ConsumerRecord<String, Order> record, Consumer<?, ?> consumer) {
        boolean isFirst = record.key().equals("c0");
        if (change.equals("commit-first")) {
            var next = new OffsetAndMetadata(record.offset() + 1);
            consumer.commitSync(Map.of(new TopicPartition(record.topic(), record.partition()), next));
        }
        Order order = record.value();
        if (order.total() < 0 && !change.equals("topic")) throw new IllegalArgumentException("a total below 0");
        var invoice = new Invoice(UUID.randomUUID(), order.id(), Instant.now(), order.total());
        String key = change.equals("wrong-key") && isFirst ? record.key() + "x" : record.key();
        int times = !isFirst ? 1 : change.equals("drop") ? 0 : change.equals("double") ? 2 : 1;
        for (; times > 0; times--) {
            var made = new ProducerRecord<String, Object>(prefix + "invoices", key, invoice);
            if (!(change.equals("header-missing") && isFirst)) made.headers().add(record.headers().lastHeader("trace"));
            template.send(made).join();
        }
        if (change.equals("abort") && isFirst && failed.add(key)) throw new IllegalStateException("abort");
    }

    @Bean
    DeadLetterPublishingRecoverer recoverer() {
        return new DeadLetterPublishingRecoverer(template, (record, error) -> new TopicPartition(prefix + "rejected", 0));
    }

    @Bean
    CommonErrorHandler errorHandler(DeadLetterPublishingRecoverer recoverer) {
        return new DefaultErrorHandler(recoverer, new FixedBackOff(50, 2));
    }

    @Bean
    AfterRollbackProcessor<Object, Object> afterRollback(DeadLetterPublishingRecoverer recoverer) {
        return new DefaultAfterRollbackProcessor<>(recoverer, new FixedBackOff(50, 2), template, true);
    }
}

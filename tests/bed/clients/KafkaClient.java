import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.*;
import org.apache.kafka.common.resource.*;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.*;
import org.apache.kafka.common.serialization.*;

/**
 * The job (see job.py) with the Java client. Compiles against kafka-clients 3.9 to 4.4, needs
 * nothing else; so that no JSON parser is needed, the job comes as arguments:
 * BOOTSTRAP PREFIX STEPS COMPRESSIONS [NAME=VALUE ...], lists separated by commas.
 */
public class KafkaClient {
    private static String bootstrap, prefix;
    private static List<String> compressions;
    private static final Map<String, Object> CONFIG = new HashMap<>();
    private static final StringSerializer OUT = new StringSerializer();
    private static final StringDeserializer IN = new StringDeserializer();

    public static void main(String[] arguments) throws IOException {
        bootstrap = arguments[0];
        prefix = arguments[1];
        compressions = List.of(arguments[3].split(","));
        for (String each : Arrays.copyOfRange(arguments, 4, arguments.length)) {
            String[] pair = each.split("=", 2);
            CONFIG.put(pair[0], pair[1]);
        }
        Map<String, Callable<Object>> steps = Map.of(
            "connect", KafkaClient::connect,
            "create", KafkaClient::create,
            "produce", KafkaClient::produce,
            "steady", KafkaClient::steady,
            "group", () -> consume(prefix + "-classic", "classic"),
            "group848", () -> consume(prefix + "-new", "consumer"),
            "transactions", KafkaClient::transactions,
            "admin", KafkaClient::administer,
            "tokens", KafkaClient::tokens);
        Map<String, Object> results = new LinkedHashMap<>();
        for (String step : arguments[2].split(",")) {
            try {
                results.put(step, steps.get(step).call());
            } catch (Throwable error) {
                error.printStackTrace();
                results.put(step, Map.of("error", String.valueOf(error)));
            }
        }
        System.out.println(json(Map.of("client", "kafka-clients " + version(), "steps", results)));
        System.exit(0);
    }

    private static String version() throws IOException {
        Properties about = new Properties();
        try (var in = Admin.class.getResourceAsStream("/kafka/kafka-version.properties")) {
            about.load(in);
        }
        return about.getProperty("version");
    }

    private static Map<String, Object> settings(Object... more) {
        Map<String, Object> all = new HashMap<>(CONFIG);
        all.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < more.length; i += 2) all.put((String) more[i], more[i + 1]);
        return all;
    }

    /** A bearer token that is there already, as the option `token` of the login module. */
    public static final class Token implements AuthenticateCallbackHandler {
        private String token;

        @Override
        public void configure(
                Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {
            token = (String) entries.get(0).getOptions().get("token");
        }

        @Override
        public void handle(Callback[] callbacks) {
            for (Callback each : callbacks)
                if (each instanceof OAuthBearerTokenCallback wanted) wanted.token(bearer());
        }

        private OAuthBearerToken bearer() {
            long now = System.currentTimeMillis();
            return new OAuthBearerToken() {
                public String value() { return token; }
                public Set<String> scope() { return Set.of(); }
                public long lifetimeMs() { return now + 3_600_000; }
                public String principalName() { return "carol"; }
                public Long startTimeMs() { return now; }
            };
        }

        @Override
        public void close() {}
    }

    private static Object connect() {
        Map<String, Object> hasty = settings("default.api.timeout.ms", 8000,
            "request.timeout.ms", 2000);
        try (Admin admin = Admin.create(hasty)) {
            admin.describeCluster().nodes().get();
            return Collections.singletonMap("saw", null);
        } catch (Throwable error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            return Map.of("saw", cause.getClass().getSimpleName() + ": " + cause.getMessage());
        }
    }

    private static Object create() throws Exception {
        try (Admin admin = Admin.create(settings())) {
            admin.createTopics(List.of(
                new NewTopic(prefix + "-records", 2, (short) 1),
                new NewTopic(prefix + "-ledger", 1, (short) 1))).all().get();
        }
        return Map.of();
    }

    private record Sent(String key, String value, List<List<String>> headers) {}

    private static List<Sent> records(String kind) {
        return List.of(
            new Sent("key-" + kind, ("text in " + kind + " ").repeat(40),
                List.of(List.of("trace", "5f3a"), List.of("trace", ""))),
            new Sent(null, "no key, " + kind, List.of()),
            new Sent("key-" + kind, null, List.of(List.of("reason", "gone"))));
    }

    private static Object produce() throws Exception {
        int produced = 0;
        for (String kind : compressions) {
            Map<String, Object> own = settings("compression.type", kind, "linger.ms", 5);
            try (Producer<String, String> producer = new KafkaProducer<>(own, OUT, OUT)) {
                List<Future<RecordMetadata>> pending = new ArrayList<>();
                for (Sent each : records(kind)) {
                    var record = new ProducerRecord<>(prefix + "-records", each.key, each.value);
                    for (List<String> header : each.headers)
                        record.headers().add(header.get(0), bytes(header.get(1)));
                    pending.add(producer.send(record));
                }
                producer.flush();
                for (Future<RecordMetadata> each : pending) each.get();
                produced += pending.size();
            }
        }
        return Map.of("produced", produced);
    }

    private static Object steady() throws Exception {
        int produced = 0;
        try (Producer<String, String> producer = new KafkaProducer<>(settings(), OUT, OUT)) {
            for (; produced < 30; produced++) {
                producer.send(new ProducerRecord<>(prefix + "-records", "" + produced)).get();
                Thread.sleep(100);
            }
        }
        return Map.of("produced", produced);
    }

    private static Object consume(String group, String protocol) {
        Map<String, Object> own = settings("group.id", group, "group.protocol", protocol,
            "auto.offset.reset", "earliest", "enable.auto.commit", false);
        int expected = compressions.stream().mapToInt(each -> records(each).size()).sum();
        List<Object> found = new ArrayList<>();
        try (Consumer<String, String> consumer = new KafkaConsumer<>(own, IN, IN)) {
            consumer.subscribe(List.of(prefix + "-records"));
            long deadline = System.currentTimeMillis() + 30_000;
            while (found.size() < expected && System.currentTimeMillis() < deadline) {
                for (var each : consumer.poll(Duration.ofMillis(500))) found.add(seen(each));
            }
            consumer.commitSync();
            long committed = consumer.committed(consumer.assignment()).values().stream()
                .filter(Objects::nonNull).mapToLong(OffsetAndMetadata::offset).sum();
            return Map.of("records", found, "committed", committed);
        }
    }

    private static List<Object> seen(ConsumerRecord<String, String> record) {
        List<Object> headers = new ArrayList<>();
        for (var each : record.headers())
            headers.add(List.of(each.key(), new String(each.value(), StandardCharsets.UTF_8)));
        return Arrays.asList(record.key(), record.value(), headers);
    }

    private static Object transactions() throws Exception {
        TopicPartition partition = new TopicPartition(prefix + "-ledger", 0);
        Map<String, Object> own = settings("transactional.id", prefix + "-tx");
        try (Producer<String, String> producer = new KafkaProducer<>(own, OUT, OUT)) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(partition.topic(), "kept-0"));
            producer.send(new ProducerRecord<>(partition.topic(), "kept-1"));
            producer.commitTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(partition.topic(), "dropped")).get();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(partition.topic(), "kept-2"));
            producer.sendOffsetsToTransaction(
                Map.of(partition, new OffsetAndMetadata(1)),
                new ConsumerGroupMetadata(prefix + "-eos"));
            producer.commitTransaction();
        }
        List<String> values = new ArrayList<>();
        Map<String, Object> reading = settings("isolation.level", "read_committed");
        try (Consumer<String, String> consumer = new KafkaConsumer<>(reading, IN, IN)) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long deadline = System.currentTimeMillis() + 20_000;
            while (!values.contains("kept-2") && System.currentTimeMillis() < deadline) {
                for (var each : consumer.poll(Duration.ofMillis(500))) values.add(each.value());
            }
        }
        return Map.of("values", values);
    }

    /** How admin calls went, by name; `call` waits for the result and keeps an error's name. */
    private static final class Calls {
        final Map<String, String> results = new LinkedHashMap<>();

        void call(String name, Callable<KafkaFuture<?>> call) {
            try {
                call.call().get();
                results.put(name, "ok");
            } catch (Throwable error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                results.put(name, cause.getClass().getSimpleName() + ": " + cause.getMessage());
            }
        }
    }

    private static Object administer() throws Exception {
        Calls calls = new Calls();
        try (Admin admin = Admin.create(settings())) {
            TopicPartition first = new TopicPartition(prefix + "-records", 0);
            topics(calls, admin, first);
            groups(calls, admin, first);
            transactionsAdmin(calls, admin, first);
            cluster(calls, admin, first);
            security(calls, admin, first);
            calls.call("deleteTopics", () -> admin.deleteTopics(List.of(first.topic())).all());
        }
        return Map.of("calls", calls.results);
    }

    private static void topics(Calls calls, Admin admin, TopicPartition first) {
        String topic = first.topic();
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        calls.call("listTopics", () -> admin.listTopics().names());
        calls.call("describeTopics", () -> admin.describeTopics(List.of(topic)).allTopicNames());
        calls.call("createPartitions",
            () -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        calls.call("describeConfigs",
            () -> admin.describeConfigs(List.of(resource, broker), options).all());
        var change = new AlterConfigOp(
            new ConfigEntry("retention.ms", "3600000"), AlterConfigOp.OpType.SET);
        calls.call("incrementalAlterConfigs",
            () -> admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
        for (OffsetSpec spec : List.of(OffsetSpec.earliest(), OffsetSpec.latest(),
                OffsetSpec.maxTimestamp(), OffsetSpec.forTimestamp(1)))
            calls.call("listOffsets " + spec.getClass().getSimpleName(),
                () -> admin.listOffsets(Map.of(first, spec)).all());
        calls.call("deleteRecords", () -> admin.deleteRecords(
            Map.of(first, RecordsToDelete.beforeOffset(-1))).all());
    }

    private static void groups(Calls calls, Admin admin, TopicPartition first) {
        String group = prefix + "-classic";
        calls.call("listConsumerGroups", () -> admin.listConsumerGroups().all());
        calls.call("describeConsumerGroups",
            () -> admin.describeConsumerGroups(List.of(group, prefix + "-new")).all());
        calls.call("listConsumerGroupOffsets",
            () -> admin.listConsumerGroupOffsets(group).all());
        calls.call("alterConsumerGroupOffsets", () -> admin.alterConsumerGroupOffsets(
            group, Map.of(first, new OffsetAndMetadata(1, "moved"))).all());
        calls.call("deleteConsumerGroupOffsets",
            () -> admin.deleteConsumerGroupOffsets(group, Set.of(first)).all());
        calls.call("deleteConsumerGroups", () -> admin.deleteConsumerGroups(List.of(group)).all());
    }

    private static void transactionsAdmin(Calls calls, Admin admin, TopicPartition first) {
        String id = prefix + "-tx";
        calls.call("describeProducers", () -> admin.describeProducers(List.of(first)).all());
        calls.call("listTransactions", () -> admin.listTransactions().all());
        calls.call("describeTransactions", () -> admin.describeTransactions(List.of(id)).all());
        calls.call("fenceProducers", () -> admin.fenceProducers(List.of(id)).all());
    }

    private static void cluster(Calls calls, Admin admin, TopicPartition first) {
        calls.call("describeCluster", () -> admin.describeCluster().nodes());
        calls.call("describeFeatures", () -> admin.describeFeatures().featureMetadata());
        calls.call("describeMetadataQuorum", () -> admin.describeMetadataQuorum().quorumInfo());
        calls.call("describeLogDirs", () -> admin.describeLogDirs(List.of(1)).allDescriptions());
        TopicPartitionReplica replica = new TopicPartitionReplica(first.topic(), 0, 1);
        calls.call("describeReplicaLogDirs",
            () -> admin.describeReplicaLogDirs(List.of(replica)).all());
        calls.call("alterReplicaLogDirs",
            () -> admin.alterReplicaLogDirs(Map.of(replica, "/nowhere")).all());
        calls.call("electLeaders",
            () -> admin.electLeaders(ElectionType.PREFERRED, Set.of(first)).partitions());
        calls.call("listPartitionReassignments",
            () -> admin.listPartitionReassignments().reassignments());
        calls.call("alterPartitionReassignments", () -> admin.alterPartitionReassignments(
            Map.of(first, Optional.of(new NewPartitionReassignment(List.of(1))))).all());
        calls.call("unregisterBroker", () -> admin.unregisterBroker(999).all());
        calls.call("listClientMetricsResources", () -> admin.listClientMetricsResources().all());
    }

    private static void security(Calls calls, Admin admin, TopicPartition first) {
        ResourcePattern pattern =
            new ResourcePattern(ResourceType.TOPIC, first.topic(), PatternType.LITERAL);
        AclBinding rule = new AclBinding(pattern, new AccessControlEntry(
            "User:nobody", "*", AclOperation.READ, AclPermissionType.ALLOW));
        calls.call("createAcls", () -> admin.createAcls(List.of(rule)).all());
        calls.call("describeAcls", () -> admin.describeAcls(rule.toFilter()).values());
        calls.call("deleteAcls", () -> admin.deleteAcls(List.of(rule.toFilter())).all());
        ClientQuotaEntity user = new ClientQuotaEntity(Map.of("user", "nobody-" + prefix));
        calls.call("alterClientQuotas", () -> admin.alterClientQuotas(List.of(
            new ClientQuotaAlteration(user,
                List.of(new ClientQuotaAlteration.Op("producer_byte_rate", 1e9))))).all());
        calls.call("describeClientQuotas",
            () -> admin.describeClientQuotas(ClientQuotaFilter.all()).entities());
        ScramCredentialInfo info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
        calls.call("alterUserScramCredentials", () -> admin.alterUserScramCredentials(List.of(
            new UserScramCredentialUpsertion("carol-" + prefix, info, "carol-secret-4Tz"))).all());
        calls.call("describeUserScramCredentials",
            () -> admin.describeUserScramCredentials().all());
    }

    /** Delegation tokens; only on a SASL listener. The results hold the secrets to look for. */
    private static Object tokens() throws Exception {
        try (Admin admin = Admin.create(settings())) {
            var token = admin.createDelegationToken().delegationToken().get();
            int described = 0;
            while (described == 0) // until the broker has heard of it from the controller
                described = admin.describeDelegationToken().delegationTokens().get().size();
            admin.renewDelegationToken(token.hmac()).expiryTimestamp().get();
            admin.expireDelegationToken(token.hmac()).expiryTimestamp().get();
            return Map.of(
                "described", described,
                "token_id", token.tokenInfo().tokenId(),
                "hmac", token.hmacAsBase64String());
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String json(Object value) {
        if (value == null || value instanceof Number) return String.valueOf(value);
        if (value instanceof Map<?, ?> map)
            return map.entrySet().stream()
                .map(each -> json(each.getKey()) + ":" + json(each.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
        if (value instanceof Collection<?> list)
            return list.stream().map(KafkaClient::json).collect(Collectors.joining(",", "[", "]"));
        StringBuilder text = new StringBuilder("\"");
        for (char c : value.toString().toCharArray()) {
            if (c == '"' || c == '\\') text.append('\\').append(c);
            else if (c < ' ') text.append(String.format("\\u%04x", (int) c));
            else text.append(c);
        }
        return text.append('"').toString();
    }
}

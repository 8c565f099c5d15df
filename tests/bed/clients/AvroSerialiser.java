import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import java.util.HexFormat;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.DecoderFactory;

/** Writes values of topic orders, with a registry: URL, then schemas, each with a value as JSON. */
public class AvroSerialiser {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings =
                Map.of(
                        "apicurio.registry.url", arguments[0],
                        "apicurio.registry.auto-register", true);
        for (int nth = 1; nth < arguments.length; nth += 2) {
            Schema schema = new Schema.Parser().parse(arguments[nth]);
            GenericRecord value =
                    new GenericDatumReader<GenericRecord>(schema)
                            .read(
                                    null,
                                    DecoderFactory.get().jsonDecoder(schema, arguments[nth + 1]));
            try (AvroKafkaSerializer<GenericRecord> serialiser = new AvroKafkaSerializer<>()) {
                serialiser.configure(settings, false);
                byte[] data = serialiser.serialize("orders", value);
                System.out.println(HexFormat.of().formatHex(data));
            }
        }
        System.exit(0); // its HTTP client has threads of its own
    }
}

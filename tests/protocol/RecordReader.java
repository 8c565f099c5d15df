import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;

/**
 * Reads a `records` field per line, in hex, as consumers do; prints one line for each: its records,
 * "offset,timestamp,key,value,name=value,…;" with bytes in hex after an x, null as "null".
 * Checksums are checked; what Kafka refuses is a line that starts with "refused".
 */
public class RecordReader {
    public static void main(String[] arguments) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String shown;
            try {
                shown = read(HexFormat.of().parseHex(line));
            } catch (Exception refused) {
                shown = "refused: " + refused;
            }
            System.out.println(shown);
        }
    }

    private static String read(byte[] data) {
        var out = new StringBuilder();
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                record.ensureValid();
                out.append(record.offset()).append(',').append(record.timestamp());
                out.append(',').append(hex(record.key())).append(',').append(hex(record.value()));
                for (Header header : record.headers()) {
                    byte[] name = header.key().getBytes(StandardCharsets.UTF_8);
                    out.append(',').append(hex(ByteBuffer.wrap(name))).append('=');
                    out.append(header.value() == null ? "null" : hex(ByteBuffer.wrap(header.value())));
                }
                out.append(';');
            }
        }
        return out.toString();
    }

    private static String hex(ByteBuffer data) {
        if (data == null) return "null";
        byte[] bytes = new byte[data.remaining()];
        data.duplicate().get(bytes);
        return "x" + HexFormat.of().formatHex(bytes);
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Iterator;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.BufferSupplier;

/**
 * Reads a `records` field per line, in hex, as consumers do; prints one line for each: its records,
 * "offset,timestamp,key,value,name=value,…;" with bytes in hex after an x, null as "null". Where
 * Kafka's reader throws, the line ends with "damaged: " and what it threw. Checksums are checked
 * only if the first argument is "checksums".
 */
public class RecordReader {
    public static void main(String[] arguments) throws Exception {
        boolean checksums = arguments.length > 0 && arguments[0].equals("checksums");
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            var out = new StringBuilder();
            try {
                read(HexFormat.of().parseHex(line), checksums, out);
            } catch (Throwable thrown) {  // snappy throws an Error
                out.append("damaged: ").append(thrown.toString().replaceAll("\\s+", " "));
            }
            System.out.println(out);
        }
    }

    private static void read(byte[] data, boolean checksums, StringBuilder out) {
        for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches()) {
            if (checksums) batch.ensureValid();
            Iterator<Record> records = batch.countOrNull() != null && batch.countOrNull() == 0
                ? batch.iterator()
                : batch.streamingIterator(BufferSupplier.NO_CACHING);
            while (records.hasNext()) {
                Record record = records.next();
                if (checksums) record.ensureValid();
                var text = new StringBuilder();
                text.append(record.offset()).append(',').append(record.timestamp());
                text.append(',').append(hex(record.key())).append(',').append(hex(record.value()));
                for (Header header : record.headers()) {
                    byte[] name = header.key().getBytes(StandardCharsets.UTF_8);
                    text.append(',').append(hex(ByteBuffer.wrap(name))).append('=');
                    text.append(header.value() == null ? "null" : hex(ByteBuffer.wrap(header.value())));
                }
                out.append(text).append(';');
            }
        }
    }

    private static String hex(ByteBuffer data) {
        if (data == null) return "null";
        byte[] bytes = new byte[data.remaining()];
        data.duplicate().get(bytes);
        return "x" + HexFormat.of().formatHex(bytes);
    }
}

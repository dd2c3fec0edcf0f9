package interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.zip.CRC32;

/** Payloads that both sides can make and compare without sending them through the pipe. */
final class Payloads {
    private static final int SHOWN_BYTES = 64;

    private Payloads() {
    }

    /** The payload of number {@code index}: byte j is 131 seed + 31 index + 7 j, modulo 256. */
    static byte[] make(long seed, long index, int size) {
        byte[] payload = new byte[size];
        long start = 131 * seed + 31 * index;
        for (int j = 0; j < size; j++) {
            payload[j] = (byte) (start + 7L * j);
        }
        return payload;
    }

    /** What a command asks for: "payloads" (base64 each), or "count" made ones of "size" bytes from number "first". */
    static List<byte[]> of(JsonNode line) {
        List<byte[]> payloads = new ArrayList<>();
        if (line.has("payloads")) {
            for (JsonNode payload : line.get("payloads")) {
                payloads.add(Base64.getDecoder().decode(payload.asText()));
            }
            return payloads;
        }
        long first = line.path("first").asLong(0);
        for (long index = first; index < first + line.get("count").asLong(); index++) {
            payloads.add(make(line.path("seed").asLong(0), index, line.get("size").asInt()));
        }
        return payloads;
    }

    static void describe(ObjectNode target, byte[] payload) {
        CRC32 crc = new CRC32();
        crc.update(payload);
        target.put("size", payload.length);
        target.put("crc32", crc.getValue());
        if (payload.length <= SHOWN_BYTES) {
            target.put("payload", Base64.getEncoder().encodeToString(payload));
        }
    }
}

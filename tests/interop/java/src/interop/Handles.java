package interop;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/** Objects that stay open between commands, by number. */
final class Handles {
    private final Map<Integer, Object> open = new ConcurrentHashMap<>();
    private final AtomicInteger last = new AtomicInteger();

    int add(Object object) {
        int handle = last.incrementAndGet();
        open.put(handle, object);
        return handle;
    }

    <T> T get(int handle, Class<T> kind) {
        Object object = open.get(handle);
        if (object == null) {
            throw new IllegalArgumentException("no open object " + handle);
        }
        return kind.cast(object);
    }

    <T> T remove(int handle, Class<T> kind) {
        T object = get(handle, kind);
        open.remove(handle);
        return object;
    }
}

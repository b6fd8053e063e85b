import java.util.concurrent.TimeUnit;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** The program before the move, as docs/guide/migrate/redisson.md shows it. It is compiled, not run. */
final class Before {
    private Before() {}

    static void deploy(RedissonClient redisson) throws InterruptedException {
        RLock lock = redisson.getLock("deploy");
        if (!lock.tryLock(10, TimeUnit.SECONDS)) {     // no lease: the watchdog renews
            throw new IllegalStateException("busy");
        }
        try {
            work();                                    // continues even if the lock is lost
        } finally {
            lock.unlock();                             // IllegalMonitorStateException if it was lost
        }
    }

    private static void work() {}
}

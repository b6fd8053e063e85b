import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;

/** The program before the move, as docs/guide/migrate/curator.md shows it. It is compiled, not run. */
final class Before {
    private Before() {}

    static void job(CuratorFramework client) throws Exception {
        InterProcessMutex lock = new InterProcessMutex(client, "/app/locks/job");
        if (!lock.acquire(10, TimeUnit.SECONDS)) {
            throw new IllegalStateException("busy");
        }
        try {
            work();                       // a ConnectionStateListener must stop it on LOST
        } finally {
            lock.release();
        }
    }

    private static void work() {}
}

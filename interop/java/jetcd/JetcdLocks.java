import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Election;
import io.etcd.jetcd.KV;
import io.etcd.jetcd.Lease;
import io.etcd.jetcd.election.CampaignResponse;
import io.etcd.jetcd.kv.GetResponse;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.support.CloseableClient;
import io.grpc.stub.StreamObserver;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** jetcd: the lock and election services of the server, and a lease for each lock. */
final class JetcdLocks implements Client {
    /** How long a free lock may take, on a busy machine. */
    private static final long TRY_MS = 5000;

    private final io.etcd.jetcd.Client etcd;

    JetcdLocks(String urls) throws Exception {
        String[] endpoints = urls.replace("etcd://", "http://").split(",");
        etcd = io.etcd.jetcd.Client.builder().endpoints(endpoints).build();
        etcd.getKVClient().get(bytes("oarlock:none")).get(30, TimeUnit.SECONDS);
    }

    private static ByteSequence bytes(String text) {
        return ByteSequence.from(text, StandardCharsets.UTF_8);
    }

    @Override
    public String name() {
        return "jetcd";
    }

    @Override
    public String version() {
        String[] jar = io.etcd.jetcd.Client.class.getProtectionDomain().getCodeSource().getLocation().getPath().split("-");
        return jar[jar.length - 1].replace(".jar", "");
    }

    @Override
    public Lock lock(String kind, String name) throws Cannot {
        return switch (kind) {
            case "mutex", "fair" -> new Held(name, false);
            case "election" -> new Held(name, true);
            default -> throw new Cannot("jetcd has no " + kind + " lock");
        };
    }

    @Override
    public boolean forceUnlock(String name) throws Exception {
        // There is no call for it: users delete the first key.
        KV kv = etcd.getKVClient();
        GetOption first = GetOption.builder()
                .isPrefix(true)
                .withSortField(GetOption.SortTarget.CREATE)
                .withSortOrder(GetOption.SortOrder.ASCEND)
                .withLimit(1)
                .build();
        GetResponse found = kv.get(bytes(name + "/"), first).get();
        return !found.getKvs().isEmpty() && kv.delete(found.getKvs().get(0).getKey()).get().getDeleted() > 0;
    }

    private boolean isTaken(String name) throws Exception {
        GetOption any = GetOption.builder().isPrefix(true).withLimit(1).build();
        return !etcd.getKVClient().get(bytes(name + "/"), any).get().getKvs().isEmpty();
    }

    private final class Held implements Lock {
        private final String name;
        private final boolean elected;
        private long lease;
        private CloseableClient keeper;
        private ByteSequence key;
        private CampaignResponse leader;
        private String fence = "-";

        Held(String name, boolean elected) {
            this.name = name;
            this.elected = elected;
        }

        @Override
        public boolean acquire(long leaseMs, long waitMs, boolean renewed) throws Exception {
            if (waitMs == 0 && isTaken(name)) {
                // There is no try: users read the key first.
                return false;
            }
            Lease leases = etcd.getLeaseClient();
            lease = leases.grant(Math.max(1, (leaseMs + 999) / 1000)).get().getID();
            // A lease must live for as long as its lock is waited for.
            keeper = leases.keepAlive(lease, new Silent());
            CompletableFuture<?> asked = elected
                    ? etcd.getElectionClient().campaign(bytes(name), lease, bytes("jetcd"))
                    : etcd.getLockClient().lock(bytes(name), lease);
            try {
                Object answer = asked.get(waitMs == 0 ? TRY_MS : waitMs, TimeUnit.MILLISECONDS);
                if (answer instanceof CampaignResponse campaign) {
                    leader = campaign;
                    key = campaign.getLeader().getKey();
                } else {
                    io.etcd.jetcd.lock.LockResponse locked = (io.etcd.jetcd.lock.LockResponse) answer;
                    key = locked.getKey();
                    fence = Long.toString(locked.getHeader().getRevision());
                }
            } catch (TimeoutException late) {
                asked.cancel(true);
                keeper.close();
                leases.revoke(lease).get();
                return false;
            }
            if (!renewed) {
                keeper.close();
            }
            return true;
        }

        @Override
        public String fence() {
            return fence;
        }

        @Override
        public boolean again() throws Cannot {
            throw new Cannot("a lease that locks again holds what it has, and counts nothing");
        }

        @Override
        public String loss() throws Exception {
            return etcd.getKVClient().get(key).get().getKvs().isEmpty() ? "its key is gone" : null;
        }

        @Override
        public void release() throws Exception {
            String loss = loss();
            keeper.close();
            if (loss != null) {
                throw new Lost(new IllegalStateException(loss));
            }
            if (elected) {
                Election elections = etcd.getElectionClient();
                elections.resign(leader.getLeader()).get();
            } else {
                etcd.getLockClient().unlock(key).get();
            }
            etcd.getLeaseClient().revoke(lease).get();
        }
    }

    /** The lock's key shows whether its lease has ended. */
    private static final class Silent implements StreamObserver<LeaseKeepAliveResponse> {
        @Override
        public void onNext(LeaseKeepAliveResponse response) {}

        @Override
        public void onError(Throwable error) {}

        @Override
        public void onCompleted() {}
    }
}

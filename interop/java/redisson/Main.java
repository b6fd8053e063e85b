/** usage: java Main redisson URL */
final class Main {
    private Main() {}

    public static void main(String[] args) throws Exception {
        Peer.run(new RedissonLocks(args[1]));
    }
}

/** usage: java Main curator HOSTS */
final class Main {
    private Main() {}

    public static void main(String[] args) throws Exception {
        Peer.run(new CuratorLocks(args[1]));
    }
}

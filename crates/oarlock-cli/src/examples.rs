//! What to type: a line for each subcommand, and what it is for. The manual pages show them.

/// The examples of a subcommand.
pub(crate) fn of(subcommand: &str) -> &'static [(&'static str, &'static str)] {
    match subcommand {
        "run" => &[
            (
                "oarlock run --on-busy skip -q nightly-backup -- /usr/local/bin/backup",
                "A cron job that must not overlap.",
            ),
            ("oarlock run -w 10m --reason 'release 2.3' deploy/prod -- ./deploy", "Wait ten minutes, and say why."),
            ("oarlock run -j 3 encoders -- ./encode small.mov", "At most three at a time."),
            ("oarlock run accounts/7 accounts/9 -- ./transfer", "Two locks as one."),
        ],
        "once" => &[
            ("oarlock once report --slot '0 2 * * * Europe/Berlin' -- ./report", "Every night, on the first machine."),
            ("oarlock once cleanup --slot 1h --on-busy skip -q -- ./cleanup", "Each hour."),
            ("oarlock once report --show", "Who ran it last, and how it ended."),
        ],
        "elect" => &[
            ("oarlock elect billing --value \"$(hostname):8080\" -- ./worker", "A worker on one machine of many."),
            ("oarlock elect billing --observe", "Print each new leader."),
        ],
        "hold" => &[("oarlock hold migrate", "Hold a lock until Ctrl-C.")],
        "acquire" => &[("ticket=$(oarlock acquire deploy/prod -t 15m)", "Take a lock that another job releases.")],
        "renew" => &[("oarlock renew \"$ticket\"", "A whole lease more.")],
        "release" => &[("oarlock release \"$ticket\"", "Give the lock back.")],
        "ls" => &[
            ("oarlock ls 'deploy/*'", "The locks in use whose names begin so."),
            ("oarlock -p prod ls -o json", "On a store of the configuration file, for a program."),
        ],
        "show" => &[("oarlock show deploy/prod", "Who holds it, who waits, and why.")],
        "wait" => &[("oarlock wait --free -w 5m deploy/prod", "Wait until it is free, and take nothing.")],
        "watch" => &[("oarlock watch 'deploy/*'", "Print what happens, an object a line.")],
        "top" => &[("oarlock top -u redis://cache", "Who holds what, the oldest waiter first.")],
        "doctor" => &[
            ("oarlock doctor -u redis+sentinel://s1,s2,s3/mymaster", "Is this store safe for locks, and why not?"),
            ("oarlock doctor -o json", "The same, for a program."),
        ],
        "break" => &[(
            "oarlock break deploy/prod --fence 1767225600000088 --reason 'stuck since noon'",
            "Ask the holder to end.",
        )],
        "init" => &[
            ("oarlock init -u postgres://admin@db/app --grant app", "Create what locks need, for the user app."),
            ("oarlock init -u mysql://admin@db/app --print", "Print it, and do nothing."),
        ],
        "serve" => &[
            ("oarlock serve -u redis://localhost", "Who holds what, at http://127.0.0.1:7070/."),
            (
                "oarlock serve --listen 0.0.0.0:7070 --tls-cert c.pem --tls-key k.pem --token-file tokens.toml --allow-break",
                "For other machines, with tokens that may end holds.",
            ),
        ],
        "bench" => &[("oarlock bench -u redis://localhost", "Measure locks on your store.")],
        "torture" => &[
            ("oarlock torture -u redis://localhost", "Try the locks of a store for a minute."),
            (
                "oarlock torture -u redis://localhost --fault-cmd 'docker restart redis'",
                "The same, and restart the server while a lock is held.",
            ),
            ("oarlock torture render oarlock-torture-RUN.jsonl > torture.html", "Look at a run."),
        ],
        "demo" => &[("oarlock demo oversell", "See what goes wrong without a lock.")],
        "url" => &[("oarlock url explain redis://localhost", "What a URL means, with all its options.")],
        "completions" => &[("source <(oarlock completions bash)", "Complete flags and the names of locks in use.")],
        "man" => &[("oarlock man run | man -l -", "Read a page.")],
        _ => &[],
    }
}

//! The promises of the command line, kept by the built binary on the embedded store.

#[cfg(test)]
mod cli {
    mod bench;
    mod break_;
    mod codes;
    mod commands;
    mod config;
    mod contention;
    mod demo;
    mod doctor;
    mod elect;
    mod flags;
    mod group;
    mod init;
    mod job;
    mod list;
    mod lost;
    mod man;
    mod messages;
    mod names;
    mod once;
    mod redis;
    mod redlock;
    mod report;
    mod restore;
    #[cfg(feature = "serve")]
    mod serve;
    mod signals;
    mod stores;
    mod support;
    mod surroundings;
    mod ticket;
    mod top;
    mod torture;
    mod uninstall;
    mod urls;
    mod watch;
}

//! The fewest rights that locks need, as rules of an access control list (ACL). Every test of them, and `oarlock init
//! --print`, takes them from here.

use oarlock_core::{Error, ErrorKind, Result};

use crate::config::{Address, Config, Layout};
use crate::error::SCHEME;
use crate::keys::literal;

/// To log in, and to load and call scripts.
const SCRIPTS: &str = "+hello +evalsha +script|load +time";

/// To receive notifications and to send them, and to see whether a waiter listens.
const SUBSCRIBE: &str = "+subscribe +unsubscribe";
const PUBLISH: &str = "+publish";
const LISTENERS: &str = "+pubsub|numsub";

/// The same in a cluster, where a channel belongs to a slot; and to find the node of a slot.
const SHARDED: &str = "+spublish +ssubscribe +sunsubscribe +cluster|slots +asking";
const SHARDED_LISTENERS: &str = "+pubsub|shardnumsub";

/// What the scripts call.
const NATIVE: &str =
    "+exists +pexpire +pexpireat +hget +hmget +hset +hdel +hkeys +zadd +zrem +zremrangebyscore +zrange";
const PLAIN: &str = "+get +set +del +pttl +pexpire +hmget +hset +hdel";
/// The same with a queue beside the lock.
const PLAIN_QUEUE: &str = "+hget +zadd +zrem +zrange";
const REDISSON: &str = "+type +exists +get +set +del +pttl +pexpire +incrby +decrby +hget +hmget +hgetall +hlen +hset \
                        +hdel +lindex +lpop +zadd +zrem +zrange +zscore";

/// The command (`ACL SETUSER`) that gives `user` what locks of this configuration need, and no more. It creates the
/// user if there is none, and leaves its passwords as they are.
///
/// # Errors
/// [`ErrorKind::Config`] for a user with a space, which Redis does not allow.
pub fn rights(config: &Config, user: &str) -> Result<String> {
    if user.is_empty() || user.contains(char::is_whitespace) {
        return Err(Error::new(ErrorKind::Config, "the name of a user of Redis has no spaces").on(SCHEME));
    }
    Ok(format!("ACL SETUSER {user} on {}\n", rules(config)))
}

fn rules(config: &Config) -> String {
    let prefix = pattern(&config.prefix);
    let is_cluster = matches!(config.address, Address::Cluster(_));
    let mut rules = vec!["resetkeys".to_owned(), format!("~{prefix}*")];
    let (keys, channels, commands): (&[&str], &[&str], _) = match config.layout {
        Layout::Native => (&[], &[], NATIVE),
        Layout::Plain => (&["oarlock:beside:*"], &["oarlock:beside:*"], PLAIN),
        Layout::Redisson => (&["oarlock:beside:*", "redisson_lock_*"], &["oarlock:beside:*", "redisson_*"], REDISSON),
    };
    rules.extend(keys.iter().map(|keys| format!("~{keys}")));
    if config.layout == Layout::Redisson {
        rules.push(format!("~{{{prefix}*"));
    }
    let own = if config.layout == Layout::Native { format!("&{prefix}*") } else { format!("&{prefix}mail:*") };
    rules.extend(["resetchannels".to_owned(), own]);
    rules.extend(channels.iter().map(|channels| format!("&{channels}")));
    rules.extend(["-@all", SCRIPTS].map(str::to_owned));
    let more = [
        (true, SUBSCRIBE),
        // Programs that share locks may listen where a channel belongs to no slot.
        (!is_cluster || config.layout == Layout::Redisson, PUBLISH),
        (config.layout == Layout::Redisson && is_cluster || config.layout == Layout::Native && !is_cluster, LISTENERS),
        (is_cluster, SHARDED),
        (is_cluster && config.layout == Layout::Native, SHARDED_LISTENERS),
        (true, commands),
        (config.layout == Layout::Plain && config.queue, PLAIN_QUEUE),
        (config.database != 0, "+select"),
        (config.min_replicas > 0, "+wait"),
    ];
    rules.extend(more.into_iter().filter(|(needed, _)| *needed).map(|(_, rules)| rules.to_owned()));
    rules.join(" ")
}

/// A pattern for this prefix alone. No rule may have a space: any character stands for it.
fn pattern(prefix: &str) -> String {
    literal(prefix).replace(|character: char| character.is_whitespace() || character == '\0', "?")
}

use std::time::Duration;

use super::*;
use crate::ErrorKind;

/// A password that must never be seen.
const CANARY: &str = "c4n4ry";

fn url(text: &str) -> Url {
    parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    let error = parse(text).expect_err(text);
    assert_eq!(error.kind(), ErrorKind::Config, "{text}");
    error.to_string()
}

#[test]
fn every_scheme_is_known() {
    let cases = [
        ("local:", "local", "local"),
        ("local:/var/lib/oarlock", "local", "local"),
        ("mem:", "mem", "mem"),
        ("redis://h", "redis", "redis"),
        ("rediss://h/2", "rediss", "redis"),
        ("valkey://h", "redis", "redis"),
        ("redis+unix:///run/redis.sock", "redis+unix", "redis"),
        ("redis+sentinel://h1:26379,h2,h3/main/3", "redis+sentinel", "redis"),
        ("rediss+sentinel://h1/main", "rediss+sentinel", "redis"),
        ("redis-sentinel://h1/main", "redis+sentinel", "redis"),
        ("redis+cluster://h1,h2,h3", "redis+cluster", "redis"),
        ("rediss+cluster://h1", "rediss+cluster", "redis"),
        ("redis-cluster://h1", "redis+cluster", "redis"),
        ("redlock://h1:6379,h2:6379,h3:6379", "redlock", "redlock"),
        ("redlocks://h1,h2,h3", "redlocks", "redlock"),
        ("etcd://u:p@h1:2379,h2/prefix", "etcd", "etcd"),
        ("etcds://h1", "etcds", "etcd"),
        ("zk://h1:2181,h2/chroot", "zk", "zookeeper"),
        ("zookeeper://h1", "zk", "zookeeper"),
        ("postgres://h/db", "postgres", "postgres"),
        ("postgresql://h/db", "postgres", "postgres"),
        ("mysql://h/db", "mysql", "mysql"),
        ("mariadb://h/db", "mysql", "mysql"),
    ];
    for (text, scheme, driver) in cases {
        let url = url(text);
        assert_eq!((url.scheme(), url.driver()), (scheme, driver), "{text}");
        let explained = url.explain();
        assert_eq!(explained.scheme, scheme);
        let keys: Vec<_> = explained.options.iter().map(|option| option.key.as_str()).collect();
        let common = ["prefix", "ttl", "connect_timeout", "op_timeout", "max_waiters"];
        assert!(keys.starts_with(&common), "{text}: {keys:?}");
        let bounded = parse(&format!("{text}{}max_waiters=7", if text.contains('?') { '&' } else { '?' }));
        assert_eq!(bounded.unwrap().max_waiters(), Some(7), "{text}");
    }
}

#[test]
fn hosts_have_ports_and_brackets() {
    let hosts = |text: &str| url(text).hosts().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(hosts("redis+sentinel://h1:1,h2,h3/m"), ["h1:1", "h2:26379", "h3:26379"]);
    assert_eq!(hosts("etcd://[::1]:9,[fe80::2],h"), ["[::1]:9", "[fe80::2]:2379", "h:2379"]);
    for bad in ["redis://", "redis://a,b", "redis://h:x", "redis://[::1", "redis://::1", "redis://[::1]x", "zk://a,,b"]
    {
        refusal(bad);
    }
    assert!(refusal("redlock://a,b").contains("at least 3"));
    assert!(url("redlock://a,b,c,d").explain().warnings[0].contains("odd"));
}

#[test]
fn a_password_is_decoded_and_never_printed() {
    let texts = [
        format!("redis://me:{CANARY}@h/1"),
        format!("redis://:{CANARY}@h"),
        format!("etcd://me:{CANARY}%2F%40:x@h1,h2/root?ttl=5s"),
        format!("postgres://me:{CANARY}/@y@h/db"),
    ];
    for text in &texts {
        let url = url(text);
        assert!(url.password().unwrap().unwrap().reveal().starts_with(CANARY));
        let explained = url.explain();
        assert!(explained.password);
        for shown in [url.to_string(), format!("{url:?} {url:#?}"), format!("{explained:?}")] {
            assert!(!shown.contains(CANARY), "{shown}");
            assert!(shown.contains("***"), "{shown}");
        }
    }
    assert_eq!(url(&texts[2]).password().unwrap().unwrap().reveal(), format!("{CANARY}/@:x"));
    let broken = [
        format!("redis://me:{CANARY}@h:port"),
        format!("redis://me:{CANARY}@h?tll=1"),
        format!("redis://me:{CANARY}%zz@h"),
        format!("redis://me:{CANARY}@a,b"),
        format!("redis:me:{CANARY}@h"),
        format!("rediz://me:{CANARY}@h"),
        format!("redis://me:{CANARY}@h/x"),
        format!("local://me:{CANARY}@h"),
        format!("me:{CANARY}@h"),
        format!("{CANARY}@h"),
        format!("redis://me:12?{CANARY}@h"),
    ];
    for text in broken {
        let refused = refusal(&text);
        assert!(!refused.contains(CANARY), "{refused}");
    }
}

#[test]
fn an_unknown_word_gets_the_nearest_known_one() {
    assert!(refusal("local:?tll=5s").contains("did you mean ttl?"));
    assert!(refusal("redis://h?layuot=plain").contains("did you mean layout?"));
    assert!(refusal("postgres://h?optimeout=1").contains("did you mean op_timeout?"));
    assert!(refusal("local:?layout=plain").contains("no option"));
    assert!(refusal("rediz://h").contains("did you mean redis?"));
    assert!(refusal("redis://h?layout=curator").contains("native, plain, redisson"));
    assert!(refusal("mem:?ttl=1s&ttl=2s").contains("twice"));
}

#[test]
fn options_have_defaults() {
    let url = url("redis://h?ttl=5s&op_timeout=200ms");
    assert_eq!(url.ttl(), Some(Duration::from_secs(5)));
    assert_eq!(url.op_timeout(), Some(Duration::from_millis(200)));
    assert_eq!(url.connect_timeout(), DEFAULT_CONNECT_TIMEOUT);
    assert_eq!((url.layout(), url.prefix()), (Some("native"), "oarlock:"));
    assert_eq!(parse("redis://h?layout=plain").unwrap().prefix(), "");
    assert_eq!(parse("mem:").unwrap().prefix(), "");
    let ttl = url.explain().options.into_iter().find(|option| option.key == "ttl").unwrap();
    assert_eq!((ttl.value.as_str(), ttl.default), ("5s", false));
    for bad in ["mem:?ttl=0", "mem:?ttl=1ms", "mem:?op_timeout=0", "mem:?connect_timeout=x", "mem:?ttl=99999d"] {
        refusal(bad);
    }
    for bad in ["mem:?max_waiters=0", "mem:?max_waiters=-1", "mem:?max_waiters=many"] {
        assert!(refusal(bad).contains("a whole number from 1 on"));
    }
}

#[test]
fn a_number_out_of_bounds_is_refused_with_its_bounds() {
    for bad in ["mem:?ttl=31d", "mem:?ttl=49ms"] {
        let refused = refusal(bad);
        assert!(refused.contains("between 50 ms and 30 days"), "{refused}");
    }
    for bad in ["mem:?op_timeout=31d", "mem:?op_timeout=9999999999999s", "mem:?connect_timeout=31d"] {
        let refused = refusal(bad);
        assert!(refused.contains("at most 30 days"), "{refused}");
    }
}

#[test]
fn a_password_may_be_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let with = |content: &str| {
        let path = folder.path().join("password");
        std::fs::write(&path, content).unwrap();
        url(&format!("redis://me@h?password_file={}", path.display()))
    };
    for (content, password) in [("swordfish", "swordfish"), ("swordfish\n", "swordfish"), (" a b \r\n", " a b ")] {
        let url = with(content);
        assert_eq!(url.password().unwrap().unwrap().reveal(), password);
        assert!(url.has_password() && url.explain().password);
        assert!(!format!("{url} {url:?} {:?}", url.explain()).contains(password));
    }
    for content in ["", "\n", "two\nlines\n", "two\n\n"] {
        let error = with(content).password().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("one line"), "{error}");
    }
    let missing = url("etcd://me@h?password_file=/no/such/file").password().unwrap_err();
    assert!(missing.to_string().contains("/no/such/file"), "{missing}");
    assert!(refusal("redis://me:secret@h?password_file=/etc/p").contains("not both"));
    assert!(refusal("redis://me@h?password_file=").contains("path of a file"));
    assert!(refusal("local:/var/lib/x?password_file=/etc/p").contains("no option"));
}

/// It was dropped with all that follows it, so that a password with one in it made another host of its first half.
#[test]
fn a_fragment_is_refused() {
    for bad in ["redis://user:1234#x@host", "redis://host#x", "local:/var/lib#1", "redis://host?ttl=5s#x"] {
        assert!(refusal(bad).contains("%23"), "{bad}");
    }
    let url = url("redis://user:1234%23x@host");
    assert_eq!(url.password().unwrap().unwrap().reveal(), "1234#x");
}

#[test]
#[cfg(feature = "zookeeper")]
fn zookeeper_is_encrypted_with_a_feature_of_its_own() {
    if cfg!(feature = "zookeeper-tls") {
        let zks = url("zks://h1,h2?ca=/etc/ca.pem");
        assert!(zks.tls() && zks.hosts()[1].port == 2281 && zks.option("ca") == Some("/etc/ca.pem"));
    } else {
        assert!(refusal("zks://h?ca=/etc/ca.pem").contains("add the feature zookeeper-tls"));
    }
    assert!(refusal("zk://h?ca=/etc/ca.pem").contains("no option"));
}

#[test]
fn databases_say_how_to_encrypt() {
    let safe = url("postgres://h/db?sslmode=verify-full&sslrootcert=/etc/ca.pem");
    assert_eq!((safe.option("sslmode"), safe.option("sslrootcert")), (Some("verify-full"), Some("/etc/ca.pem")));
    for (mode, encrypted) in [("disable", false), ("prefer", false), ("require", true), ("verify-ca", true)] {
        assert_eq!(url(&format!("postgres://h?sslmode={mode}")).explain().tls, encrypted, "{mode}");
    }
    for word in ["always", "allow", "VERIFY_CA"] {
        let refused = refusal(&format!("postgres://h?sslmode={word}"));
        assert!(refused.contains("disable, prefer, require, verify-ca or verify-full"), "{refused}");
    }
    let safe = url("mariadb://h/db?sslmode=verify-full&sslrootcert=/etc/ca.pem");
    assert_eq!((safe.option("sslmode"), safe.option("sslrootcert")), (Some("verify-full"), Some("/etc/ca.pem")));
    assert!(refusal("etcd://h?sslmode=require").contains("no option"));
}

#[test]
fn databases_say_how_their_own_locks_are_called() {
    let raw = url("postgres://h/db?mode=session&key=raw");
    assert_eq!((raw.choice("mode"), raw.option("key")), (Some("session"), Some("raw")));
    assert!(refusal("mysql://h/db?mode=session&key=hashed").contains("named or raw"));
}

#[test]
fn redis_has_keys_of_its_own() {
    let plain = url("redis+cluster://h?min_replicas=1&allow_eviction=yes");
    assert_eq!((plain.option("min_replicas"), plain.option("allow_eviction")), (Some("1"), Some("yes")));
    assert_eq!(url("redis://h").option("min_replicas"), None);
    let theirs = url("rediss+cluster://h?layout=redisson&tokens=yes");
    assert_eq!((theirs.layout(), theirs.prefix(), theirs.option("tokens")), (Some("redisson"), "", Some("yes")));
    assert_eq!(url("rediss+sentinel://h/m?ca=/etc/ca.pem").option("ca"), Some("/etc/ca.pem"));
    let explained = url("rediss://h?min_replicas=2").explain().options;
    let own = explained.iter().skip_while(|option| option.key != "min_replicas");
    let shown: Vec<_> = own.map(|o| (o.key.as_str(), o.value.as_str(), o.default)).collect();
    assert_eq!(shown[..3], [("min_replicas", "2", false), ("allow_eviction", "no", true), ("ca", "", true)]);
    assert_eq!(url("redlock://a,b,c/2?allow_eviction=yes").path_part("database"), "2");
    assert_eq!(url("redlocks://a,b,c?ca=/etc/ca.pem").option("ca"), Some("/etc/ca.pem"));
    assert_eq!((url("redlock://a,b,c").layout(), url("redlock://a,b,c").prefix()), (Some("plain"), ""));
    assert!(refusal("redlock://a,b,c?min_replicas=1").contains("no option"));
    assert!(refusal("redis://h?min_replicas=one").contains("a whole number"));
    assert!(refusal("redis://h?allow_eviction=maybe").contains("yes or no"));
    assert!(refusal("redis://h?min_replica=1").contains("did you mean min_replicas?"));
    for bad in ["redis://h?ca=/etc/ca.pem", "etcd://h?min_replicas=1", "rediss://h?ca="] {
        refusal(bad);
    }
}

#[test]
fn paths_mean_what_their_scheme_says() {
    assert_eq!(url("local:/a%20b").path(), "/a b");
    assert_eq!(url("redis://h/7").path_part("database"), "7");
    let sentinel = url("redis+sentinel://h/main/3");
    assert_eq!((sentinel.path_part("master"), sentinel.path_part("database")), ("main", "3"));
    for bad in
        ["local:relative", "mem:/x", "redis://h/x", "redis+sentinel://h", "redis+sentinel://h/m/x", "redis+unix://"]
    {
        refusal(bad);
    }
}

//! The dashboard in a real Chromium. What a user does is done by keys; expressions only look.

use std::time::{Duration, Instant};

use oarlock::{Label, Locks};
use oarlock_serve::Config;
use oarlock_testbed::Redis;
use serde_json::{Value, json};

use super::chromium::{Browser, writes_pictures};
use super::support::{PATIENCE, Running, Store, TOKEN, eventually, is_long};
use super::tools;

/// Runs `check` while two processes wait for each other.
async fn deadlock(server: &Running, check: impl Future<Output = ()>) {
    let take = async |name: &str, pid: u32, wait: u64| {
        let label = json!({ "host": "build-7", "pid": pid, "user": "ci" });
        let body = json!({ "wait_ms": wait, "ttl_ms": 120_000, "label": label }).to_string();
        server.send("POST", &format!("/v1/locks/{name}"), &body).await.status
    };
    assert_eq!((take("accounts%2F7", 1, 0).await, take("accounts%2F9", 2, 0).await), (201, 201));
    tokio::select! {
        () = check => {}
        _ = async { tokio::join!(take("accounts%2F7", 2, 60_000), take("accounts%2F9", 1, 60_000)) } => {
            panic!("they wait for each other")
        }
    }
}

/// The label of a process elsewhere.
fn label(user: &str, host: &str, pid: u32) -> Label {
    let mut label = Label::default();
    (label.user, label.host, label.pid) = (user.to_owned(), host.to_owned(), pid);
    label
}

/// Waits for a lock in the background, in a place of its own in the queue.
async fn queue(locks: &Locks, name: &str, label: Label, place: usize) -> tokio::task::JoinHandle<oarlock::Guard> {
    let wait = locks.mutex(name).fair().label(label).wait(4 * PATIENCE);
    let waiting = tokio::spawn(async move { wait.lock().await.unwrap() });
    let count = || async { locks.inspect(name).await.unwrap().waiters.count() };
    eventually("it waits", || async { count().await == Some(place) }).await;
    waiting
}

/// Signs in by keys.
async fn sign_in(browser: &mut Browser, token: &str) {
    browser.until("document.getElementById('token').open && document.activeElement.id === 'token-input'").await;
    browser.write(token);
    browser.press("Enter");
}

/// Opens a lock by keys, from the list.
async fn open_lock(browser: &mut Browser, name: &str) {
    browser.press("/");
    browser.until("document.activeElement.id === 'filter'").await;
    browser.write(name);
    browser.until(&format!("order[0] === {}", json!(name))).await;
    browser.press("Enter");
    browser.until("!document.getElementById('lock').hidden && document.querySelector('#lock .command') !== null").await;
}

async fn back(browser: &mut Browser) {
    browser.press("Escape");
    browser.until("!document.getElementById('list').hidden").await;
}

/// Opens the dialog that ends the first hold of the lock that is shown, by keys.
async fn open_break(browser: &mut Browser) {
    browser.until("document.querySelector('#lock button.danger') !== null").await;
    browser.tab_to("#lock button.danger").await;
    browser.press("Enter");
    browser.until("document.getElementById('break').open && document.activeElement.id === 'break-name'").await;
}

const ANSWER: &str = "document.getElementById('break-answer')";

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_works_by_keyboard_alone() {
    for store in Store::all() {
        println!("{}", store.url);
        works_by_keyboard(&store).await;
    }
}

async fn works_by_keyboard(store: &Store) {
    let (server, locks) = (Running::guarded(store).await, store.connect().await);
    let guard = locks.mutex("deploy/prod").reason("release 2.3").lock().await.unwrap();
    let _more = (
        locks.rwlock("report").read().await.unwrap(),
        locks.semaphore("encoders", 3).reason("holiday.mov").acquire(2).await.unwrap(),
        locks.election("scheduler").campaign("node-3:8080").await.unwrap(),
    );
    let mut waiting = Vec::new();
    for (place, pid, reason) in [(1, 311, "first in line"), (2, 312, "second in line")] {
        waiting.push(queue(&locks, "deploy/prod", label("ci", "build-2", pid).reason(reason), place).await);
    }
    let Some(mut browser) = Browser::open(&format!("http://{}/", server.address)).await else { return };

    // The token: a wrong one, then the right one.
    sign_in(&mut browser, "wrong").await;
    browser.until("!document.getElementById('token-wrong').hidden").await;
    sign_in(&mut browser, TOKEN).await;
    browser.until("order.length === 4").await;
    assert_eq!(browser.eval("location.href.includes('token') || document.body.innerHTML.includes('a-token')"), false);

    // The list: the oldest wait first, and what leads the eye.
    assert_eq!(browser.eval("order"), json!(["deploy/prod", "encoders", "report", "scheduler"]));
    let row = |name: &str, cell: &str| {
        format!(
            "[...document.querySelectorAll('#space .row')].find((row) => row.dataset.name === \
                '{name}').querySelector('{cell}').textContent"
        )
    };
    assert_eq!(browser.eval(&row("deploy/prod", ".holder small")), "release 2.3");
    assert_eq!(browser.eval(&row("deploy/prod", ".waiters")), "2");
    assert_eq!(browser.eval(&row("encoders", ".chip")), "semaphore 2/3");
    assert_eq!(browser.eval(&row("scheduler", ".holder small")), "leads at node-3:8080");
    assert_eq!(browser.eval("document.querySelectorAll('#space .row.waited').length"), 1);
    assert_eq!(browser.eval("document.getElementById('sum-held').textContent"), "4");
    assert_eq!(browser.eval("document.getElementById('sum-name').textContent"), "deploy/prod");
    let fence = guard.fence().to_string();
    assert_eq!(browser.eval(&row("deploy/prod", ".fence .full")), fence.as_str());
    assert!(
        browser
            .eval(&row("deploy/prod", ".fence .short"))
            .as_str()
            .unwrap()
            .ends_with(&fence[fence.len().saturating_sub(6)..])
    );

    // Headers sort, in both directions.
    let sorted = "document.querySelector('#head [data-key=name]').getAttribute('aria-sort')";
    browser.tab_to("#head [data-key=name] button").await;
    for (direction, first) in [("ascending", "deploy/prod"), ("descending", "scheduler")] {
        browser.press("Enter");
        browser.until(&format!("{sorted} === '{direction}' && order[0] === '{first}'")).await;
    }
    browser.tab_to("#head [data-key=wait] button").await;
    browser.press("Enter");
    browser.until(&format!("{sorted} === null && order[0] === 'deploy/prod'")).await;

    // The grid tells which row is meant.
    browser.tab_to("#rows").await;
    browser.press("ArrowDown");
    let active = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).dataset.name";
    browser.until(&format!("{active} === 'encoders' && selected === 'encoders'")).await;

    // A lock: the queue in order, the commands, the last holders.
    open_lock(&mut browser, "deploy/prod").await;
    browser
        .until(
            "location.hash === '#/lock/deploy%2Fprod' && document.querySelectorAll('#lock [aria-label=Queue] \
        tbody tr').length === 2",
        )
        .await;
    let page = browser.eval("document.getElementById('lock').innerText").as_str().unwrap().to_owned();
    let (first, second) = (page.find("first in line").unwrap(), page.find("second in line").unwrap());
    assert!(first < second && page.contains("oarlock show deploy/prod") && page.contains(&fence), "{page}");
    assert!(page.contains("curl -s -H \"Authorization: Bearer $TOKEN\" http://"), "{page}");
    let empty = "[...document.querySelectorAll('#lock th')].filter((head) => !head.hidden).map((head) => \
        head.textContent).includes('Tags')";
    assert_eq!(browser.eval(empty), false, "no column is empty");
    browser.until("document.querySelectorAll('#lock svg rect').length > 0").await;
    let past = browser.eval("document.querySelector('#lock [aria-label=\"Last holders\"] td').textContent");
    let us = Label::of_this_process();
    assert_eq!(past, format!("{}@{} (pid {})", us.user, us.host, us.pid), "named as in the list");

    // What is focused and what is selected stays while the page is live.
    browser.tab_to("#lock .command button").await;
    browser.eval(
        "window.kept = document.activeElement; \
        getSelection().selectAllChildren(kept.previousElementSibling); window.words = document.querySelector('#lock \
        [aria-label=Holders]').innerText",
    );
    browser
        .until(
            "document.querySelector('#lock [aria-label=Holders]').innerText !== words && document.activeElement \
            === kept && getSelection().toString() === kept.previousElementSibling.textContent",
        )
        .await;
    browser.press("Enter");
    browser.until("kept.textContent !== 'Copy'").await;

    // Its lease is shown as renewals leave it, which are no change of the lock.
    browser.until("[...leases.values()].every(({ full, renewed }) => renewed && full === 30000)").await;

    // Break: not without the name, then with it.
    open_break(&mut browser).await;
    browser.write("deploy/pro");
    assert_eq!(browser.eval("document.getElementById('break-do').disabled"), true);
    browser.write("d");
    browser.until("!document.getElementById('break-do').disabled").await;
    browser.tab_to("#break-do").await;
    browser.press("Enter");
    browser.until(&format!("{ANSWER}.textContent.startsWith('asked ')")).await;
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("the holder is told");
    let mut waiting = waiting.into_iter();
    let next = waiting.next().unwrap().await.unwrap();
    assert!(next.is_held());

    // The dialog still means the hold that has ended: its fence is refused, and the next holder keeps the lock.
    browser.press("Enter");
    browser.until(&format!("{ANSWER}.className === 'trouble' && {ANSWER}.textContent.includes('{fence}')")).await;
    assert!(next.is_held());
    browser.until("document.getElementById('lock').innerText.includes('Breaks')").await;
    browser.press("Escape");
    back(&mut browser).await;

    // An address that is no name shows the list; a name is no option of a command.
    browser.eval("location.hash = '#/lock/%'");
    browser.until("location.hash === '#/lock/%' && !document.getElementById('list').hidden").await;
    let _option = locks.mutex("--help").lock().await.unwrap();
    browser.eval("location.hash = '#/lock/--help'");
    browser.until("document.getElementById('lock').innerText.includes(' -- --help')").await;
    assert_eq!(browser.eval("document.getElementById('lock').innerText.includes('show --help')"), false);
    back(&mut browser).await;

    // The graph.
    browser.press("g");
    browser.until("document.getElementById('graph').innerText.includes('Who waits for whom')").await;
    assert_eq!(browser.eval("document.querySelector('nav [aria-current=page]').textContent"), "Wait-for graph");
    deadlock(&server, async {
        browser.until("document.querySelectorAll('svg.graph g.cycle').length === 2").await;
        browser.until("document.querySelectorAll('svg.graph path.cycle:not(.head)').length === 2").await;
        browser.until("document.getElementById('graph').innerText.includes('Deadlock')").await;
    })
    .await;

    // A server that does not answer: the dialog says so, and can ask again.
    back(&mut browser).await;
    open_lock(&mut browser, "deploy/prod").await;
    open_break(&mut browser).await;
    browser.write("deploy/prod");
    browser.tab_to("#break-do").await;
    server.stop().await;
    browser.press("Enter");
    browser.until(&format!("{ANSWER}.className === 'trouble' && {ANSWER}.textContent.startsWith('No answer')")).await;
    assert_eq!(browser.eval("document.getElementById('break-do').disabled"), false);
    browser.until("document.getElementById('status').dataset.state === 'lost'").await;
    assert!(next.is_held());
    drop(waiting);
}

/// The best of some: a machine that does other things may be late, but not each time.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_drawn_within_a_second() {
    for store in Store::all() {
        draws_a_change_in_time(&store).await;
    }
}

async fn draws_a_change_in_time(store: &Store) {
    let (server, locks) = (Running::start(store).await, store.connect().await);
    let Some(mut browser) = Browser::open(&format!("http://{}/", server.address)).await else { return };
    browser.until("document.getElementById('status').textContent === 'live'").await;
    let mut took = Vec::new();
    while took.len() < 10 && took.iter().min().is_none_or(|best| *best > Duration::from_secs(1)) || took.len() < 3 {
        let begun = Instant::now();
        let fresh = locks.mutex("fresh").lock().await.unwrap();
        browser.until("document.querySelector('#space .row .name')?.textContent === 'fresh'").await;
        took.push(begun.elapsed());
        fresh.release().await.unwrap();
        browser.until("document.querySelector('#space .row') === null").await;
    }
    println!("{}: a change is drawn after {took:?}", locks.info().scheme);
    assert!(took.iter().min() <= Some(&Duration::from_secs(1)), "{took:?}");
    server.stop().await;
}

/// The page sends several requests before it knows that it needs a token.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_without_a_token_does_not_ask_for_it_again() {
    let store = Store::local();
    let (server, locks) = (Running::guarded(&store).await, store.connect().await);
    let guard = locks.mutex("a").lock().await.unwrap();
    let Some(mut browser) = Browser::open(&format!("http://{}/", server.address)).await else { return };
    browser.until("document.getElementById('token').open").await;
    let late = "window.late = new Promise((answered) => window.answer = answered); const real = window.fetch; \
        window.fetch = async (...asked) => { window.fetch = real; const said = await real(...asked); await window.late; \
        return said; }; window.after = call('/v1/locks').then((said) => said.status); true";
    assert_eq!(browser.eval(late), true);
    sign_in(&mut browser, TOKEN).await;
    browser.until("document.querySelectorAll('#space .row').length === 1").await;
    assert_eq!(browser.eval("window.answer(); window.after"), 200, "it is asked once more, with the token");
    assert_eq!(browser.eval("document.getElementById('token').open"), false);
    guard.release().await.unwrap();
    server.stop().await;
}

/// Names and labels of a stranger are text, and what cannot be seen in them is shown.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_writes_text_and_nothing_else() {
    let store = Store::local();
    let (server, locks) = (Running::guarded(&store).await, store.connect().await);
    let image = "<img src=x onerror=\"window.hacked=1\">";
    let hidden = "\u{202e}\u{61c}\u{ad}\u{e0041}\u{200b}\u{7}\n";
    let name = format!("{image}{hidden}$(touch x)`y`'");
    let stranger = |pid| {
        let label = label(&format!("{image}{hidden}"), &format!("<b>host</b>{hidden}"), pid);
        let label = label.reason(format!("<script>hacked=1</script>{hidden}"));
        label.tag(format!("<i>key{hidden}</i>"), format!("<u>value{hidden}</u>")).tag("command", format!("<s>{hidden}"))
    };
    let guard = locks.mutex(name.as_str()).label(stranger(1)).lock().await.unwrap();
    let waiting = queue(&locks, &name, stranger(2), 1).await;
    let election = locks.election("leader").campaign(format!("<a href='javascript:hacked=1'>{hidden}")).await.unwrap();
    let Some(mut browser) = Browser::open(&format!("http://{}/", server.address)).await else { return };
    sign_in(&mut browser, TOKEN).await;
    browser.until("document.querySelectorAll('#space .row').length === 2").await;

    let elements = "document.querySelectorAll('main img, main script, main i:not(.bar i), main u, main s, dialog img, \
        dialog script, dialog i, main [href^=javascript]').length";
    let invisible = "/[\\u202e\\u061c\\u00ad\\u200b\\u0007]|\\u{e0041}/u.test([...document.querySelectorAll('main, \
        dialog')].map((part) => part.textContent).join() + [...document.querySelectorAll('[title], \
        [aria-label]')].map((part) => part.title + part.ariaLabel).join() + document.title)";
    let check = |browser: &mut Browser, view: &str| {
        assert_eq!(browser.eval("window.hacked === undefined"), true, "{view}");
        assert_eq!(browser.eval(elements), 0, "{view}: all of it is text");
        assert_eq!(browser.eval(invisible), false, "{view}: what cannot be seen is shown");
    };
    let escaped = r"\u{202e}\u{61c}\u{ad}\u{e0041}\u{200b}\u{7}\u{a}";
    let shown = |selector: &str| {
        format!("document.querySelector({}).textContent.includes({})", json!(selector), json!(escaped))
    };
    for selector in ["#space .name", "#space .holder small", "#space .person", "#space .command"] {
        browser.until(&shown(selector)).await;
    }
    check(&mut browser, "list");

    browser.tab_to("#rows").await;
    browser.press("Enter");
    browser.until("document.querySelectorAll('#lock [aria-label=Queue] tbody tr').length === 1").await;
    browser.until(&shown("#lock h2")).await;
    browser.until("document.querySelectorAll('#lock svg text').length > 0").await;
    check(&mut browser, "lock");
    // The commands are words of a shell, which give the name back.
    let command = browser.eval("document.querySelector('#lock .command code').textContent");
    let word = command.as_str().unwrap().strip_prefix("oarlock show ").unwrap().rsplit_once(" -u ").unwrap().0;
    let echoed = std::process::Command::new("bash")
        .args(["-c", &format!("printf %s {word}")])
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&echoed.stdout), name, "{word}");

    // The name is confirmed as it is shown.
    open_break(&mut browser).await;
    browser.until(&shown("#break-who")).await;
    check(&mut browser, "break");
    let typed = browser.eval("document.getElementById('break-word').textContent");
    browser.write(typed.as_str().unwrap());
    browser.tab_to("#break-do").await;
    browser.press("Enter");
    browser.until(&format!("{ANSWER}.textContent.startsWith('asked ')")).await;
    check(&mut browser, "broken");
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("the holder is told");
    let next = waiting.await.unwrap();
    let again = queue(&locks, &name, stranger(3), 1).await;
    browser.press("Escape");
    browser.press("g");
    browser.until("document.querySelectorAll('svg.graph g').length === 2").await;
    browser.until(&shown("svg.graph title")).await;
    check(&mut browser, "graph");
    drop((next, again, election));
    server.stop().await;
}

/// Changes may come faster than a person reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_changes_reads_the_history_once() {
    let store = Store::local();
    let (server, locks) = (Running::start(&store).await, store.connect().await);
    let Some(mut browser) = Browser::open(&format!("http://{}/#/lock/busy", server.address)).await else { return };
    browser.until("document.querySelector('#lock .command') !== null").await;
    let reads = "performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/history')).length";
    let before = browser.eval(reads).as_u64().unwrap();
    let begun = Instant::now();
    for _ in 0..30 {
        let guard = locks.mutex("busy").lock().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        guard.release().await.unwrap();
    }
    let (took, read) = (begun.elapsed().as_secs(), browser.eval(reads).as_u64().unwrap() - before);
    assert!(read <= 3 + 2 * took, "{read} reads in {took} s");
    // What is held for longer than a sample is in the history, and is told to the page, which polls nothing.
    let last = locks.mutex("busy").reason("the last one").lock().await.unwrap();
    let past = "document.querySelector('#lock [aria-label=\"Last holders\"]').innerText.includes('the last one')";
    browser.until(past).await;
    assert_eq!(browser.eval("leases.size"), 1, "leases that have ended are forgotten");
    let polls = "performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/busy')).length";
    assert_eq!(browser.eval(polls), 0, "its stream tells it all");
    // An answer that fails is asked for again, and a read that is due while another is under way is not forgotten.
    browser.eval(
        "window.real = fetch; window.tries = 0; \
         fetch = (path, ...rest) => !String(path).endsWith('/history') ? real(path, ...rest) \
         : ++tries < 2 ? Promise.reject(new Error('away')) \
         : tries < 3 ? Promise.resolve(new Response('', { status: 503 })) : real(path, ...rest); 0",
    );
    last.release().await.unwrap();
    let _next = locks.mutex("busy").reason("after a failure").lock().await.unwrap();
    browser.until(&past.replace("the last one", "after a failure")).await;
    assert!(browser.eval("tries").as_u64().unwrap() >= 3);
    server.stop().await;
}

/// A browser has six connections to a server over HTTP/1.1, for all of its tabs.
#[tokio::test(flavor = "multi_thread")]
async fn many_tabs_do_not_starve_each_other() {
    let store = Store::local();
    let (server, locks) = (Running::start(&store).await, store.connect().await);
    let _held = locks.mutex("deploy/prod").lock().await.unwrap();
    let url = format!("http://{}/#/lock/deploy%2Fprod", server.address);
    let Some(mut browser) = Browser::open(&url).await else { return };
    let mut tabs = Vec::new();
    for _ in 0..9 {
        tabs.push(browser.tab(&url).await);
        browser.until("document.getElementById('status').textContent === 'live'").await;
        browser.until("document.querySelectorAll('#lock svg rect').length > 0").await;
    }
    // One that cannot be seen is at rest, and goes on when it is seen.
    browser.use_tab(&tabs[0]);
    browser.until("document.hidden && document.getElementById('status').textContent === 'paused'").await;
    browser.call("Page.bringToFront", &json!({}));
    browser.until("!document.hidden && document.getElementById('status').textContent === 'live'").await;
    server.stop().await;
}

/// The 50th, 95th and largest of some times.
const PERCENTILES: &str = "(took) => { took.sort((a, b) => a - b); return [took[took.length >> 1], \
    took[Math.floor(took.length * 0.95)], took.at(-1)].map((ms) => Math.round(ms * 10) / 10); }";

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_locks_scroll_without_stutter() {
    scrolls("mem:").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_locks_of_redis_scroll_without_stutter() {
    if !is_long() {
        eprintln!("skipped: 10,000 locks of Redis are drawn in a long run only (OARLOCK_LONG=1)");
        return;
    }
    let Some(redis) = Redis::start_or_skip().unwrap() else { return };
    scrolls(&redis.url()).await;
}

async fn scrolls(url: &str) {
    let locks = oarlock::connect(url).await.unwrap();
    let mut guards = Vec::new();
    for number in 0..10_000 {
        guards.push(locks.mutex(format!("job/{number}")).lock().await.unwrap());
    }
    let mut config = Config::default();
    config.listen = "127.0.0.1:0".parse().unwrap();
    let server = Running::over(locks.clone(), config).await;
    let Some(mut browser) = Browser::open(&format!("http://{}/", server.address)).await else { return };
    browser.until("typeof order !== 'undefined' && order.length === 10000").await;
    let rows = browser.eval("document.querySelectorAll('#space .row').length").as_u64().unwrap();
    assert!(rows < 60, "only what is seen: {rows}");
    let arranged = browser.eval(&format!(
        "(({PERCENTILES})(Array.from({{ length: 20 }}, () => {{ const begun = performance.now(); arrange(); return \
            performance.now() - begun; }})))"
    ));
    let draws = browser.eval(&format!(
        "(({PERCENTILES})(Array.from({{ length: 60 }}, (_, at) => {{ const box = document.getElementById('rows'); \
            box.scrollTop = at * box.scrollHeight / 60; const begun = performance.now(); draw(); return \
            performance.now() - begun; }})))"
    ));
    // Intervals between frames while it scrolls from end to end, and while locks come and go at each sample.
    let changing = tokio::spawn(async move {
        loop {
            let mut some = Vec::new();
            for number in 0..200 {
                some.push(locks.mutex(format!("live/{number}")).lock().await.unwrap());
            }
            tokio::time::sleep(Duration::from_millis(600)).await;
            drop(some);
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
    });
    browser.eval(
        "window.told = 0; new MutationObserver(() => { told += 1; })\
         .observe(document.getElementById('status'), { childList: true, characterData: true, subtree: true })",
    );
    let measure = format!(
        "(async () => {{ const box = document.getElementById('rows'), took = [], sizes = new Set(); let last = await \
            new Promise(requestAnimationFrame); \
         for (let at = 0; at < 360 || (sizes.size < 2 && at < 3600); at++) {{ \
         box.scrollTop = at % 360 * box.scrollHeight / 360; \
         const now = await new Promise(requestAnimationFrame); took.push(now - last); \
         last = now; sizes.add(locks.size); }} \
         return {{ frames: ({PERCENTILES})(took), sizes: sizes.size }}; }})()"
    );
    let measured = tokio::task::block_in_place(|| browser.eval(&measure));
    changing.abort();
    assert_eq!(browser.eval("told"), 0, "a screen reader is not told twice a second that the page is live");
    let crowd = "prepared({ name: 'x', at_ms: 5, holders: [], waiting: 200000, \
                 waiters: Array.from({ length: 200000 }, (_, at) => ({ waited_ms: at % 5 })) }).waitSince";
    assert_eq!(browser.eval(crowd), 1, "the oldest of 200,000 waiters");
    let frames = &measured["frames"];
    println!(
        "10,000 locks of {url}: {frames} ms between frames while it scrolls and changes; sorted in {arranged} ms, \
            drawn in {draws} ms (p50, p95, longest)"
    );
    for (took, what) in [(&arranged, "sorts"), (&draws, "draws")] {
        assert!(took[0].as_f64().unwrap() < 16.7, "it {what} in {took} ms: no frame has room for that");
    }
    assert!(measured["sizes"].as_u64().unwrap() > 1, "locks come and go meanwhile: {measured}");
    assert!(frames[0].as_f64().unwrap() < 200.0, "{measured}: 16.7 ms is a frame, and this machine may be busy");
    // The last of those that come and go would be selected, and then be gone.
    browser.until("order.length === 10000").await;
    browser.tab_to("#rows").await;
    browser.press("End");
    browser.until("selected === order.at(-1) && document.querySelector('#space .selected') !== null").await;
    server.kill().await;
}

/// 360 pixels: nothing is cut off, and no text is smaller than 11 pixels.
#[tokio::test(flavor = "multi_thread")]
async fn every_view_is_readable_on_a_phone() {
    let store = Store::local();
    let (server, locks) = (Running::start(&store).await, store.connect().await);
    let _guard =
        locks.mutex("deploy/prod").label(label("ana", "build-7", 6440).reason("release 2.3")).lock().await.unwrap();
    let _waiting = queue(&locks, "deploy/prod", label("ci", "build-2", 311).reason("hotfix"), 1).await;
    let Some(mut browser) = Browser::open(&format!("http://{}/", server.address)).await else { return };
    browser.screen(360, 720, 2, true);
    deadlock(&server, async {
        for (view, ready) in [
            ("#/", "order.length === 3"),
            ("#/lock/deploy%2Fprod", "document.querySelectorAll('#lock svg rect').length > 0"),
            ("#/graph", "document.querySelectorAll('svg.graph g.cycle').length === 2"),
        ] {
            browser.eval(&format!("location.hash = '{view}'"));
            browser.until(ready).await;
            browser.until("innerWidth === 360 && document.documentElement.scrollWidth <= 360").await;
            let beyond = browser.eval(
                "[...document.querySelectorAll('main section:not([hidden]) *')].filter((part) => \
                    part.getBoundingClientRect().width && part.getBoundingClientRect().right > 361 && \
                    !part.closest('.bar')).map((part) => part.outerHTML.slice(0, 200))",
            );
            assert_eq!(beyond, json!([]), "{view}");
            let small = browser.eval(
                "[...document.querySelectorAll('main section:not([hidden]) *')].filter((part) => \
                    [...part.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && \
                    part.getClientRects().length && part.checkVisibility()).filter((part) => { const drawn = \
                    part.ownerSVGElement, scale = drawn ? drawn.getBoundingClientRect().width / \
                    drawn.viewBox.baseVal.width : 1; const size = parseFloat(getComputedStyle(part).fontSize) * \
                    scale; return size > 0 && size < 11; }).map((part) => part.outerHTML.slice(0, 200))",
            );
            assert_eq!(small, json!([]), "{view}");
        }
        browser.eval("location.hash = '#/'");
        let seen = "[...document.querySelectorAll('#space .row')].filter((row) => \
            row.querySelector('.waiters').checkVisibility({ visibilityProperty: true })).map((row) => \
            [row.dataset.name, row.querySelector('.waiters').textContent])";
        browser.until("!document.getElementById('list').hidden").await;
        let mut seen = browser.eval(seen).as_array().unwrap().clone();
        seen.sort_by_key(Value::to_string);
        assert_eq!(json!(seen), json!([["accounts/7", "1"], ["accounts/9", "1"], ["deploy/prod", "1"]]));
    })
    .await;
    server.stop().await;
}

/// The rules of axe-core: names of controls, contrast, order of headings, roles.
#[tokio::test(flavor = "multi_thread")]
async fn every_view_is_accessible() {
    if !is_long() {
        eprintln!("skipped: axe-core is installed in a long run only (OARLOCK_LONG=1)");
        return;
    }
    let Some(axe) = tools::axe().await else { return };
    let store = Store::local();
    let (server, locks) = (Running::guarded(&store).await, store.connect().await);
    let mut guards = Vec::new();
    for name in ["deploy/prod", "import"] {
        guards.push(locks.mutex(name).reason("release 2.3").lock().await.unwrap());
    }
    let _waiting = queue(&locks, "import", label("ci", "build-2", 311), 1).await;
    let Some(mut browser) = Browser::open(&format!("http://{}/", server.address)).await else { return };
    browser.until("document.getElementById('token').open").await;
    browser.eval(&axe);
    let check = |browser: &mut Browser, view: &str| {
        let found = browser.eval(
            "axe.run().then(({ violations }) => violations.map(({ id, impact, nodes }) =>
                `${id} (${impact}): ${nodes.map((node) => node.html).join(' | ')}`).join('\\n'))",
        );
        assert_eq!(found, "", "{view}");
    };
    check(&mut browser, "token");
    sign_in(&mut browser, TOKEN).await;
    browser.until("document.body.innerText.includes('deploy/prod')").await;
    deadlock(&server, async {
        for scheme in ["light", "dark"] {
            browser.scheme(scheme);
            for (view, ready) in [
                ("#/", "document.body.innerText.includes('deploy/prod')"),
                ("#/lock/import", "document.querySelector('#lock button.danger') !== null"),
                ("#/graph", "document.querySelectorAll('svg.graph g.cycle').length === 2"),
            ] {
                browser.eval(&format!("location.hash = '{view}'"));
                browser.until(ready).await;
                check(&mut browser, &format!("{view}, {scheme}"));
            }
            browser.press("?");
            browser.until("document.getElementById('help').open").await;
            check(&mut browser, &format!("keys, {scheme}"));
            browser.press("Escape");
            browser.tab_to("#badge").await;
            browser.press("Enter");
            browser.until("!document.getElementById('findings').hidden").await;
            check(&mut browser, &format!("findings, {scheme}"));
            browser.press("Enter");
            browser.eval("location.hash = '#/lock/import'");
            open_break(&mut browser).await;
            check(&mut browser, &format!("break, {scheme}"));
            browser.press("Escape");
        }
    })
    .await;
    drop(guards);
    server.stop().await;
}

/// A store as it is on a busy day: its pictures are those of the documentation.
#[tokio::test(flavor = "multi_thread")]
async fn a_busy_store_is_drawn() {
    let Some(redis) = Redis::start_or_skip().unwrap() else { return };
    let store = Store::of(redis.url(), redis);
    let (server, locks) = (Running::guarded(&store).await, store.connect().await);
    let Some(mut browser) = Browser::open(&format!("http://{}/", server.address)).await else { return };
    sign_in(&mut browser, TOKEN).await;
    browser.until("document.getElementById('status').textContent === 'live'").await;
    // Ages and past holders are made by waiting: only for pictures that are kept.
    let pause = async |seconds: u64| {
        if writes_pictures() {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
    };
    let (ana, bo, ci) = (label("ana", "build-7", 6440), label("bo", "laptop-bo", 8122), label("ci", "build-2", 311));
    let migrate = |host, pid| label("deploy", host, pid).reason("0042_add_index").tag("command", "migrate");
    let mut held = Vec::new();
    let scheduler =
        locks.election("scheduler").label(label("sched", "node-3", 9)).campaign("node-3:8080").await.unwrap();
    let batch = label("billing", "worker-3", 1290).reason("nightly run").tag("command", "invoices");
    held.push(locks.mutex("billing/invoices").label(batch).lock().await.unwrap());
    let stuck = label("web", "web-4", 22).reason("stuck since the failover").tag("command", "rebuild");
    let rebuild = locks.mutex("cache/rebuild").label(stuck).lock().await.unwrap();
    for (round, (who, seconds)) in
        [(&ci, 4), (&ana, 6), (&bo, 3), (&ci, 5), (&bo, 2), (&ana, 4)].into_iter().enumerate()
    {
        let reason = ["hotfix 2.2.1", "release 2.2", "rollback"][round % 3];
        let guard = locks.mutex("deploy/prod").label(who.clone().reason(reason).tag("command", "deploy.sh"));
        let guard = guard.lock().await.unwrap();
        pause(seconds).await;
        guard.release().await.unwrap();
        pause(1).await;
    }
    let release = ana.reason("release 2.3").tag("command", "deploy.sh");
    held.push(locks.mutex("deploy/prod").label(release).lock().await.unwrap());
    let mut waiting =
        vec![queue(&locks, "deploy/prod", ci.reason("hotfix 2.2.1").tag("command", "deploy.sh"), 1).await];
    pause(5).await;
    waiting.push(queue(&locks, "deploy/prod", bo.reason("rollback").tag("command", "make"), 2).await);
    held.push(locks.mutex("db/migrations").label(migrate("api-1", 77)).lock().await.unwrap());
    waiting.push(queue(&locks, "db/migrations", migrate("api-2", 78), 1).await);
    pause(3).await;
    let encoder = |host, pid, file: &str| label("media", host, pid).reason(file).tag("command", "ffmpeg");
    let encoders = (
        locks.semaphore("encoders", 4).label(encoder("gpu-1", 55, "holiday.mov")).acquire(2).await.unwrap(),
        locks.semaphore("encoders", 4).label(encoder("gpu-2", 56, "talk.mp4")).acquire(1).await.unwrap(),
    );
    let readers = (
        locks.rwlock("reports/daily").label(label("ana", "bi-1", 12).reason("export")).read().await.unwrap(),
        locks.rwlock("reports/daily").label(label("joe", "bi-2", 13)).read().await.unwrap(),
    );
    for (number, customer) in ["acme", "globex", "hooli", "initech", "umbrella", "wonka"].iter().enumerate() {
        let pid = 400 + u32::try_from(number).unwrap();
        let import = label("etl", &format!("worker-{}", number % 4 + 1), pid).tag("command", "import");
        let import = import.reason(format!("batch {}", 17 + number));
        held.push(locks.mutex(format!("import/{customer}")).label(import).lock().await.unwrap());
        pause(1).await;
    }
    let path = format!("/v1/locks/cache%2Frebuild?fence={}&grace_ms=60000&reason=stuck", rebuild.fence());
    assert_eq!(server.send("DELETE", &path, "").await.status, 200);
    browser.until("order.length === 13 && document.querySelectorAll('#space .row.ending').length === 1").await;
    assert_eq!(browser.eval("order.slice(0, 2)"), json!(["deploy/prod", "db/migrations"]));
    // What the doctor found, with the ways to read on.
    browser.tab_to("#badge").await;
    browser.press("Enter");
    for link in ["/docs/runbook.md#", "/docs/guarantees.md#"] {
        browser.until(&format!("document.querySelector('#findings .finding a[href*=\"{link}\"]') !== null")).await;
    }
    browser.press("Enter");
    browser.until("document.getElementById('findings').hidden").await;
    browser.eval("document.activeElement.blur()");
    for (scheme, name) in [("dark", "serve-dark.png"), ("light", "serve-light.png")] {
        browser.scheme(scheme);
        browser.picture(name);
    }
    browser.screen(360, 720, 2, true);
    browser.until("innerWidth === 360").await;
    browser.picture("serve-phone.png");
    browser.screen(1280, 1000, 1, false);
    browser.until("innerWidth === 1280").await;
    browser.eval("location.hash = '#/lock/deploy%2Fprod'");
    browser
        .until(
            "document.querySelectorAll('#lock svg rect').length > 0 && document.querySelectorAll('#lock \
        [aria-label=Queue] tbody tr').length === 2",
        )
        .await;
    browser.picture("serve-lock.png");
    browser.screen(1280, 720, 1, false);
    browser.eval("location.hash = '#/graph'");
    deadlock(&server, async {
        browser.until("document.querySelectorAll('svg.graph g.cycle').length === 2").await;
        browser.picture("serve-graph.png");
    })
    .await;
    drop((held, waiting, scheduler, rebuild, encoders, readers));
    server.stop().await;
}

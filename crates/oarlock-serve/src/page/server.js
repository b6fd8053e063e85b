// Requests to the server, and its streams of events.

const pathOf = (name) =>
  `/v1/locks/${encodeURIComponent(name).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16)}`)}`;

const token = () => sessionStorage.getItem("oarlock-token");

async function call(path, options = {}) {
  const headers = { ...options.headers };
  const sent = token();
  if (sent) headers.authorization = `Bearer ${sent}`;
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.status === 401) {
    // The answer may be late, and about an earlier token than the one that was given since.
    if (sent === token()) await askToken(Boolean(sent));
    return call(path, options);
  }
  return answer;
}

let asking = null;
function askToken(wrong) {
  asking ??= new Promise((done) => {
    sessionStorage.removeItem("oarlock-token");
    $("token-wrong").hidden = !wrong;
    $("token-input").value = "";
    $("token").showModal();
    $("token").addEventListener(
      "close",
      () => {
        sessionStorage.setItem("oarlock-token", $("token-input").value.trim());
        $("token-input").value = "";
        asking = null;
        done();
      },
      { once: true },
    );
  });
  return asking;
}

// Reads a stream of events until it ends; `fetch` and not EventSource, which cannot send a token.
async function stream(path, signal, handle) {
  const answer = await call(path, { signal, headers: { accept: "text/event-stream" } });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).detail ?? `status ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    let from = Math.max(0, rest.length - 1),
      end;
    rest += value;
    while ((end = rest.indexOf("\n\n", from)) >= 0) {
      const lines = rest.slice(0, end).split("\n");
      rest = rest.slice(end + 2);
      from = 0;
      const field = (name) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
      if (field("event") && !signal.aborted) handle(field("event"), JSON.parse(field("data") ?? "null"));
    }
  }
}

function say(state, text = state) {
  mark($("status"), "data-state", state);
  set($("status"), text);
}

// Follows a stream for as long as it is wanted, and opens it again when it ends: not all pages at one moment.
async function follow(path, signal, handle) {
  let pause = 250;
  while (!signal.aborted) {
    try {
      await stream(path, signal, (event, data) => {
        pause = 250;
        say("live");
        handle(event, data);
      });
      if (!signal.aborted) say("lost", "reconnecting …");
    } catch (error) {
      if (signal.aborted) return;
      say("lost", `disconnected: ${plain(error.message)}`);
    }
    await new Promise((done) => setTimeout(done, pause * (0.5 + Math.random())));
    pause = Math.min(pause * 2, 5000);
  }
}

// The one stream of the view that is open. A browser opens six connections to a server, for all of its tabs: a tab that
// cannot be seen has none.
const HIDDEN_AFTER = 2000;
let listening = null; // its AbortController
let view = null; // what opens it
let hiding = null;

function listen() {
  clearTimeout(hiding);
  if (document.hidden) {
    hiding = setTimeout(() => {
      listening?.abort();
      listening = null;
      say("paused");
    }, HIDDEN_AFTER);
  } else if (!listening && view) {
    listening = new AbortController();
    view(listening.signal);
  }
}

function show(next) {
  listening?.abort();
  [listening, view] = [null, next];
  listen();
}

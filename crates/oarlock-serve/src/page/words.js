// Times, names and labels as words.

// Characters that are invisible, or that change the direction of text, are shown and not obeyed.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\u115f\u1160\u2800\u3164\uffa0\u{e0100}-\u{e01ef}]/u;
function plain(text) {
  return String(text).replace(new RegExp(`\\\\|${HIDDEN.source}`, "gu"), (c) =>
    c === "\\" ? "\\\\" : `\\u{${c.codePointAt(0).toString(16)}}`,
  );
}

// Today's times without the date.
function when(ms) {
  const time = new Date(ms),
    today = time.toDateString() === new Date().toDateString();
  const clock = { hour12: false };
  return today ? time.toLocaleTimeString([], clock) : time.toLocaleString([], clock);
}

function span(ms) {
  const s = Math.floor(Math.max(0, ms) / 1000);
  if (s < 1) return `${Math.max(0, Math.round(ms))} ms`;
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const person = (label) => `${label.user ? `${plain(label.user)}@` : ""}${label.host ? plain(label.host) : "unnamed"}`;
const command = (label) => plain(label.tags?.command ?? "");
const details = (label) => [label.pid ? `pid ${label.pid}` : "", command(label)].filter(Boolean).join(" · ");
const who = (label) => person(label) + (details(label) ? ` (${details(label)})` : "");

// A word for a POSIX shell; with characters that cannot be seen, one for bash, zsh or ksh.
function shellWord(text) {
  if (HIDDEN.test(text)) {
    const escaped = text.replace(/[\\']/g, "\\$&").replace(new RegExp(HIDDEN.source, "gu"), (c) => {
      const code = c.codePointAt(0),
        hex = code.toString(16);
      return code < 0x80 ? `\\x${hex.padStart(2, "0")}` : `\\U${hex.padStart(8, "0")}`;
    });
    return `$'${escaped}'`;
  }
  return /^[\p{L}\p{N}/._:@%+=,-]+$/u.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

// As much of a text as fits, in letters of this width.
const cut = (text, width, letter = 7) =>
  text.length * letter <= width ? text : `${text.slice(0, Math.max(1, Math.floor(width / letter) - 1))}…`;

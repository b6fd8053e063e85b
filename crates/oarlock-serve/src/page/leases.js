// Ages and leases of a lock, as they are now: a row was read a moment ago.

let clockOffset = 0; // the server's clock minus ours
const leases = new Map(); // claim → the length of its lease, as far as it is known

const now = () => Date.now() + clockOffset;
const aged = (row, ms) => ms + (now() - row.at_ms);
// A hold that ends with a session has the same lease at all times.
const countsDown = () => store?.capabilities.liveness !== "session";
const left = (row, holder) => holder.lease_left_ms - (countsDown() ? now() - row.at_ms : 0);

// The store tells how much is left of a lease, and not how long it is. That is what is left right after a renewal, or
// the usual length that is a little longer, as a renewal is seen late. Until one is seen, it is the next usual length.
const USUAL = [1, 2, 3, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 900, 1800, 3600, 7200, 86400].map(
  (s) => s * 1000,
);
function noteLease(row, holder) {
  const rest = holder.lease_left_ms,
    known = leases.get(holder.claim),
    end = row.at_ms + rest;
  if (!known) leases.set(holder.claim, { full: USUAL.find((ms) => ms >= rest) ?? rest, end });
  else if (end > known.end + 1000) {
    const usual = USUAL.find((ms) => ms >= rest) ?? rest;
    const full = usual - rest < usual / 8 ? usual : Math.ceil(rest / 1000) * 1000;
    leases.set(holder.claim, { full: known.renewed ? Math.max(known.full, full) : full, end, renewed: true });
  }
}

function forget(row, next) {
  for (const holder of row?.holders ?? []) {
    if (!next?.holders.some((other) => other.claim === holder.claim)) leases.delete(holder.claim);
  }
}

const newBar = () => element("span", { class: "bar" }, element("i"), element("b"));
function bar(box, row, holder) {
  box.hidden = !holder;
  if (!holder) return;
  const rest = Math.max(0, left(row, holder)),
    full = Math.max(leases.get(holder.claim)?.full ?? rest, 1);
  box.firstChild.style.width = `${Math.min(100, (100 * rest) / full).toFixed(1)}%`;
  box.classList.toggle("low", rest < full / 3);
  set(box.lastChild, span(rest));
}

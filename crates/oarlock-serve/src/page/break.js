// The dialog that ends a hold.

function askBreak(name, holder, row) {
  set(
    $("break-who"),
    `"${plain(name)}" is held by ${who(holder.label)} for ${span(aged(row, holder.held_ms))}, fence ${holder.fence}.`,
  );
  set($("break-word"), plain(name));
  for (const id of ["break-name", "break-reason"]) $(id).value = "";
  const answered = (text, failed) => {
    set($("break-answer"), plain(text));
    $("break-answer").className = failed ? "trouble" : "good";
  };
  answered("", false);
  // A name with characters that no keyboard has is typed as it is shown.
  const check = () => {
    $("break-do").disabled = ![name, plain(name)].includes($("break-name").value);
  };
  check();
  $("break-name").oninput = check;
  // Not disabled meanwhile: that would take the focus away.
  let busy = false;
  $("break-do").onclick = async () => {
    if (busy) return;
    busy = true;
    answered("asking …", false);
    const query = new URLSearchParams({
      fence: holder.fence,
      grace_ms: String(Math.round(1000 * Number($("break-grace").value || 0))),
      reason: $("break-reason").value,
    });
    try {
      const answer = await call(`${pathOf(name)}?${query}`, { method: "DELETE" });
      const body = await answer.json().catch(() => ({}));
      answered(body.detail ?? `status ${answer.status}`, !answer.ok);
    } catch (error) {
      answered(
        `No answer: ${error.message}. It is not known whether the hold was ended; it does no harm to ask again.`,
        true,
      );
    }
    busy = false;
  };
  $("break").showModal();
}

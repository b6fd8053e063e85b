// The commands to look at a lock from a shell.

function commandsFor(name, row) {
  const word = shellWord(name),
    url = store ? ` -u ${shellWord(store.address)}` : "";
  // A name that begins with "-" must not be read as an option.
  const line = (verb, options = "") =>
    name.startsWith("-") ? `oarlock ${verb}${options}${url} -- ${word}` : `oarlock ${verb}${options} ${word}${url}`;
  const fenced = row.holders.find((holder) => holder.fence);
  return [
    line("show"),
    line("watch"),
    line("wait", " --free"),
    ...(fenced ? [line("break", ` --fence ${fenced.fence}`)] : []),
    `curl -s ${token() ? '-H "Authorization: Bearer $TOKEN" ' : ""}${shellWord(location.origin + pathOf(name))}`,
  ];
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Not a secure context: the text is selected, for the keys of the browser.
    getSelection().selectAllChildren(button.previousElementSibling);
    set(button, "Press Ctrl+C");
    return;
  }
  set(button, "Copied");
  setTimeout(() => set(button, "Copy"), 1500);
}

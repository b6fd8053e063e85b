// Elements of the page. All text of the store is put in as text, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Writes a text only where it differs: a selection stays, and a screen reader is not told again.
function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function mark(node, key, value) {
  if (value === null) node.removeAttribute(key);
  else if (node.getAttribute(key) !== String(value)) node.setAttribute(key, value);
}

// Changes the children only if the text of what they are made from has changed.
function renew(box, text, make) {
  if (box.dataset.made === text) return;
  box.dataset.made = text;
  box.replaceChildren(...make());
}

const SVG = "http://www.w3.org/2000/svg";
function svg(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

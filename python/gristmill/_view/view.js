"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const panel = document.getElementById("tokens");
const buttons = Array.from(document.querySelectorAll(".segment"));
const ROLES = ["system", "user", "assistant", "tool"];
const CONTROL = /[\u0000-\u0008\u000b-\u001f]/g;

function textOf(id) {
  const text = data.texts[id];
  if (text === undefined) return id + " ";
  return text.replace(/\n/g, "↵\n").replace(CONTROL, (one) => String.fromCharCode(0x2400 + one.charCodeAt(0)));
}

function label(text) {
  const made = document.createElement("small");
  made.textContent = text;
  return made;
}

function show(button) {
  const row = data.rows[button.dataset.row];
  const [start, length, place] = row.segments[button.dataset.segment];
  const title = document.createElement("h4");
  title.textContent = `${row.name}, tokens ${start} to ${start + length - 1}${place}`;
  const tokens = document.createElement("div");
  // Marks that all tokens have would say nothing.
  const marked = row.trained !== null && row.trained.slice(start, start + length).includes("0");
  let last = "";
  for (let index = start; index < start + length; index++) {
    const token = document.createElement("span");
    const trained = row.trained !== null && row.trained[index] === "1";
    token.className = trained && marked ? "token on" : "token";
    token.textContent = textOf(row.tokens[index]);
    const facts = [`token ${index}`, `id ${row.tokens[index]}`];
    if (row.positions) facts.push(`position ${row.positions[index]}`);
    for (const [name, values] of Object.entries(row.values)) facts.push(`${name} ${JSON.stringify(values[index])}`);
    for (const [name, values] of Object.entries(row.of_samples)) facts.push(`${name} ${JSON.stringify(values[button.dataset.segment])}`);
    if (row.trained) facts.push(trained ? "trained on" : "not trained on");
    const origin = data.origins[row.origins[index]];
    if (origin !== undefined) {
      facts.push(origin);
      const role = origin.split(",")[0];
      token.classList.add("of", ROLES.includes(role) ? role : "other", origin.endsWith(": content") ? "content" : "frame");
      if (origin !== last && origin.endsWith(": content")) tokens.append(label(origin));
      last = origin;
    }
    token.title = facts.join(", ");
    tokens.append(token);
  }
  panel.replaceChildren(title, tokens);
  panel.hidden = false;
  for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
}

function moved(button, key) {
  const at = buttons.indexOf(button);
  if (key === "ArrowLeft" || key === "ArrowRight") return buttons[at + (key === "ArrowRight" ? 1 : -1)];
  const row = Number(button.dataset.row) + (key === "ArrowDown" ? 1 : -1);
  return buttons.find((other) => Number(other.dataset.row) === row);
}

for (const button of buttons) {
  // One stop of the tab key for each row; the arrows reach the other segments.
  button.tabIndex = button.dataset.segment === "0" ? 0 : -1;
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => show(button));
  button.addEventListener("keydown", (event) => {
    if (!event.key.startsWith("Arrow")) return;
    const next = moved(button, event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
    show(next);
  });
}

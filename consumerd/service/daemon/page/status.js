// Keeps the page current: fetches it again and takes over what differs, so that focus, selection and clicks survive.
"use strict";

const EVERY = 2000;
let timer = 0;
let lost = "";

function say(text) {
  const place = document.getElementById("said");
  if (place.textContent !== text) place.textContent = text;
}

// Without the credentials that the address of the page may hold: fetch refuses those.
function at(path) {
  return location.origin + path;
}

// Makes `old` what `fresh` is. Nodes of the same kind stay; what is left over goes.
function take(old, fresh) {
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const coming = [...fresh.childNodes];
  coming.forEach((next, index) => {
    const here = old.childNodes[index];
    if (!here) old.append(document.importNode(next, true));
    else if (here.nodeType !== next.nodeType || here.nodeName !== next.nodeName) here.replaceWith(document.importNode(next, true));
    else if (next.nodeType === Node.ELEMENT_NODE) take(here, next);
    else if (here.nodeValue !== next.nodeValue) here.nodeValue = next.nodeValue;
  });
  while (old.childNodes.length > coming.length) old.lastChild.remove();
}

async function refresh() {
  clearTimeout(timer);
  try {
    const answer = await fetch(at(location.pathname + location.search), { cache: "no-store", signal: AbortSignal.timeout(4 * EVERY) });
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    take(document.getElementById("main"), fresh.getElementById("main"));
    document.title = fresh.title;
    document.body.classList.remove("stale");
    if (lost) say("");
    lost = "";
  } catch (error) {
    lost ||= new Date().toLocaleTimeString();
    document.title = "no answer - consumerd";
    document.body.classList.add("stale");
    say(`The daemon has not answered since ${lost}: what is shown is old.`);
  }
  timer = setTimeout(refresh, EVERY);
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  event.preventDefault();
  const fields = new FormData(form);
  try {
    const answer = await fetch(at(new URL(form.action).pathname), { method: "POST", body: new URLSearchParams(fields), redirect: "manual" });
    const well = answer.type === "opaqueredirect" || answer.ok;
    say(well ? `${fields.get("partition")}: ${form.action.endsWith("/pause") ? "paused" : "resumed"}` : await answer.text());
  } catch (error) {
    say(`${fields.get("partition")}: no answer`);
  }
  await refresh();
});

timer = setTimeout(refresh, EVERY);

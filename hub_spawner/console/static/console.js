// The console's few lines of behaviour: times in the reader's zone, the dialog, and looking again without disturbing.
"use strict";

// The page's language as the reader writes it: times are 18:30 for en-GB, 6:30 PM for en-US.
const language = () => {
  const page = document.documentElement.lang;
  return navigator.languages.find((one) => one.split("-")[0] === page.split("-")[0]) || page || undefined;
};

function showTimes(root) {
  const moment = new Intl.DateTimeFormat(language(), { dateStyle: "medium", timeStyle: "short" });
  const today = new Intl.DateTimeFormat(language(), { timeStyle: "short" });
  const ago = new Intl.RelativeTimeFormat(language(), { numeric: "auto", style: "short" });
  for (const time of root.querySelectorAll("time[data-epoch]")) {
    const when = new Date(Number(time.dataset.epoch) * 1000);
    time.dateTime = when.toISOString();
    time.title = moment.format(when);
    const seconds = (when - Date.now()) / 1000;
    if (!("relative" in time.dataset)) {
      time.textContent = when.toDateString() === new Date().toDateString() ? today.format(when) : moment.format(when);
    } else if (Math.abs(seconds) < 3600) {
      time.textContent = ago.format(Math.round(seconds / 60), "minute");
    } else if (Math.abs(seconds) < 86400) {
      time.textContent = ago.format(Math.round(seconds / 3600), "hour");
    } else {
      time.textContent = moment.format(when);
    }
  }
}

function say(text, kind) {
  const said = document.getElementById("said");
  const box = document.createElement("div");
  box.className = `alert alert-${kind} shadow-sm`;
  box.textContent = text;
  said.replaceChildren(box);
  setTimeout(() => box.remove(), 8000);
}

// --- the dialog: what is swapped into it opens it, and closing gives the focus back to what opened it ---

let opener = null;

function openDialog() {
  const dialog = document.getElementById("dialog");
  if (!dialog.open) {
    opener = document.activeElement && document.activeElement.id;
    dialog.showModal();
  }
  const first = dialog.querySelector("input:not([type=hidden]), textarea, select, button");
  if (first) first.focus();
}

function closeDialog() {
  document.getElementById("dialog").close();
}

document.addEventListener("DOMContentLoaded", () => {
  showTimes(document);
  setInterval(() => showTimes(document), 30000);
  const dialog = document.getElementById("dialog");
  dialog.addEventListener("close", () => {
    document.getElementById("dialog-body").replaceChildren();
    // The live view has been replaced meanwhile: its new button has the old one's id.
    const back = opener && document.getElementById(opener);
    if (back) back.focus();
    opener = null;
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) closeDialog();
  });
  setTimeout(() => document.getElementById("said").replaceChildren(), 8000);
});

document.addEventListener("click", (event) => {
  const close = event.target.closest && event.target.closest("[data-close]");
  if (close && document.getElementById("dialog").open) {
    event.preventDefault();
    closeDialog();
  }
});

document.addEventListener("click", (event) => {
  if (event.target.closest && event.target.closest("[data-reload]")) {
    event.preventDefault();
    location.reload();
  }
});

// --- htmx ---

const shown = new WeakMap();

document.addEventListener("htmx:beforeRequest", (event) => {
  const polled = event.detail.requestConfig.triggeringEvent == null;
  if (polled && document.hidden) event.preventDefault();
});

document.addEventListener("htmx:beforeSwap", (event) => {
  const { target, xhr } = event.detail;
  // A form that was refused keeps its place; its dialog shows why.
  if ("same" in target.dataset) {
    if (shown.get(target) === xhr.responseText) event.detail.shouldSwap = false;
    shown.set(target, xhr.responseText);
  }
});

document.addEventListener("htmx:afterSwap", (event) => {
  showTimes(event.detail.target);
  if (event.detail.target.id === "dialog-body" && event.detail.target.childElementCount) openDialog();
});

// A form that was refused has replaced itself: the first field that is wrong gets the focus.
document.addEventListener("htmx:oobAfterSwap", (event) => {
  const wrong = event.detail.elt.querySelector("[aria-invalid=true]");
  if (wrong) setTimeout(() => wrong.focus(), 0);
});

document.addEventListener("said", (event) => {
  closeDialog();
  say(event.detail.text, "success");
  document.body.dispatchEvent(new Event("looked"));
});

for (const event of ["htmx:sendError", "htmx:timeout"]) {
  document.addEventListener(event, () => say(document.body.dataset.offline, "warning"));
}

// Who is signed out signs in as the page loads again; what somebody is writing stays until they have seen why.
const written = () =>
  [...document.querySelectorAll("form[method=post] :is(input:not([type=hidden]), textarea)")].some(
    (field) => field.value !== field.defaultValue || field.checked !== field.defaultChecked,
  );

document.addEventListener("signed-out", () => {
  if (written()) say(document.body.dataset.signedOut, "warning");
  else location.reload();
});

// What the server cannot do: theme, confirmation, things that stay as they are over a swap, and clocks.

const byId = (id) => document.getElementById(id);

// ── theme ────────────────────────────────────────────────────────────────────────────────────────────────────

const systemDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";
const showTheme = () => byId("theme").setAttribute("aria-pressed", String(isDark()));

byId("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("theme", theme);
  } catch {
    // Storage is switched off: the choice lasts for this page.
  }
  showTheme();
});
systemDark.addEventListener("change", showTheme);
showTheme();

// ── stopping asks first ──────────────────────────────────────────────────────────────────────────────────────

const dialog = byId("confirm-stop");
const STOP_TEXTS = {
  Stop:
    `New requests are refused at once. Running ones have up to ${dialog?.dataset.drainS} s to finish, ` +
    "then its processes end and its memory is free.",
  Remove: "It has failed already. Its record goes from this list.",
};

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-stop]");
  if (!button || !dialog) return;
  const label = button.textContent.trim();
  const values = {
    label,
    model: button.closest("[data-model]").dataset.model,
    text: STOP_TEXTS[label],
  };
  for (const place of dialog.querySelectorAll("[data-fill]")) place.textContent = values[place.dataset.fill];
  dialog.querySelector("[name=instance_id]").value = button.dataset.stop;
  dialog.showModal();
});

if (dialog) {
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  dialog.querySelector("form").addEventListener("submit", () => dialog.close());
  dialog.addEventListener("close", () => {
    // The button may have been drawn again meanwhile, or be gone.
    const opener = byId(`stop-${dialog.querySelector("[name=instance_id]").value}`);
    (opener ?? byId("instances-title")).focus();
  });
}

// ── what stays over a swap: open details, the chosen chat model ──────────────────────────────────────────────

const open = new Set();

// Asked of the page itself and not gathered from its toggle events: those come later, maybe after the swap.
function rememberOpen() {
  for (const details of document.querySelectorAll("details[id]")) {
    if (details.open) open.add(details.id);
    else open.delete(details.id);
  }
}
document.addEventListener("htmx:sseBeforeMessage", rememberOpen);
document.addEventListener("htmx:beforeSwap", rememberOpen);

document.addEventListener("htmx:afterSwap", () => {
  for (const id of open) {
    const details = byId(id);
    if (details && !details.open) details.open = true;
  }
  tick();
});

const chatModel = byId("chat-model");
let chosenModel = chatModel.value;
chatModel.addEventListener("change", () => (chosenModel = chatModel.value));
chatModel.addEventListener("htmx:sseMessage", () => {
  if ([...chatModel.options].some((option) => option.value === chosenModel)) chatModel.value = chosenModel;
  chosenModel = chatModel.value;
});

// ── said aloud: an instance's status has changed ─────────────────────────────────────────────────────────────

const statuses = () =>
  new Map([...document.querySelectorAll("[data-instance]")].map((card) => [card.dataset.instance, card.dataset]));
const plain = (found) => new Map([...found].map(([id, data]) => [id, { model: data.model, status: data.status }]));
let known = plain(statuses());

byId("instances").addEventListener("htmx:sseMessage", () => {
  const now = plain(statuses());
  const said = [];
  for (const [id, { model, status }] of now) if (known.get(id)?.status !== status) said.push(`${model} is ${status}`);
  for (const [id, { model }] of known) if (!now.has(id)) said.push(`${model} is gone`);
  known = now;
  for (const notice of document.querySelectorAll("[data-instance-notice]")) {
    if (known.get(notice.dataset.instanceNotice)?.status !== notice.dataset.while) notice.remove();
  }
  if (said.length) byId("announcer").textContent = said.join(". ");
});

// ── connection ───────────────────────────────────────────────────────────────────────────────────────────────

const live = byId("live");
const showLive = (state, text) => {
  live.dataset.state = state;
  live.textContent = text;
};

document.addEventListener("htmx:sseOpen", () => {
  const again = live.dataset.state === "lost";
  showLive("live", "live");
  if (again) htmx.trigger("#plan-form", "refresh");
});
document.addEventListener("htmx:sseError", () => showLive("lost", "connection lost, trying again"));

// ── answers that are no fragment ─────────────────────────────────────────────────────────────────────────────

const noticeIn = (target, text) => {
  const notice = document.createElement("p");
  notice.className = "problem error";
  notice.textContent = text;
  target.replaceChildren(notice);
};

document.addEventListener("htmx:beforeSwap", (event) => {
  const { xhr, target } = event.detail;
  if (xhr.status === 401) {
    event.detail.shouldSwap = false;
    location.assign("/login");
  } else if (xhr.getResponseHeader("Content-Type")?.startsWith("application/json")) {
    event.detail.shouldSwap = false;
    noticeIn(target, JSON.parse(xhr.responseText).error?.message ?? `the server answered ${xhr.status}`);
  }
});
document.addEventListener("htmx:sendError", (event) =>
  noticeIn(event.detail.target, "The control plane cannot be reached. Nothing is known to have changed."),
);

// ── clocks: the same rule as `ago` in rendering.py ───────────────────────────────────────────────────────────

const UNITS = [
  ["d", 86400],
  ["h", 3600],
  ["min", 60],
];

function ago(since) {
  const passed = Math.max(0, Math.floor((Date.now() - Date.parse(since)) / 1000));
  for (const [unit, length] of UNITS) if (passed >= length) return `${Math.floor(passed / length)} ${unit}`;
  return `${passed} s`;
}

function tick() {
  for (const time of document.querySelectorAll("time[data-since]")) {
    const text = ago(time.dateTime);
    if (time.textContent !== text) time.textContent = text;
  }
}
setInterval(tick, 1000);

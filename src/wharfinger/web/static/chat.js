// The chat box: a client of the OpenAI endpoint on this very server, with the session's cookie.

const MAX_TOKENS = 512;

const byId = (id) => document.getElementById(id);
const form = byId("chat");
const log = byId("chat-log");
const text = byId("chat-text");
const figures = byId("chat-figures");
const send = byId("chat-send");
const stop = byId("chat-stop");

let messages = [];
let running = null;

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) ask();
});
text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
stop.addEventListener("click", () => running?.abort());
byId("chat-clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  log.replaceChildren();
  figures.textContent = "";
  text.focus();
});

function bubble(role, content) {
  log.querySelector(".empty")?.remove();
  const box = document.createElement("p");
  box.className = `bubble ${role}`;
  box.dataset.role = role;
  box.textContent = content;
  log.append(box);
  log.scrollTop = log.scrollHeight;
  return box;
}

function problem(content) {
  const box = bubble("problem", content);
  box.classList.add("error");
}

async function ask() {
  const model = byId("chat-model").value;
  if (!model) {
    problem("No model that generates text is running. Launch one first.");
    return;
  }
  const question = { role: "user", content: text.value.trim() };
  if (!question.content) return;
  const conversation = messages;
  const asked = [...conversation, question];
  text.value = "";
  bubble("user", question.content);
  const box = bubble("assistant", "");
  working(true);
  const answer = new Answer(box);
  try {
    await stream({ model, messages: asked }, answer, running.signal);
  } catch (error) {
    if (error.name === "AbortError") answer.note = "stopped";
    else problem(error.message);
  }
  figures.textContent = answer.figures();
  // What failed before its first token is not part of the conversation, nor is what was cleared away meanwhile.
  if (messages !== conversation) figures.textContent = "";
  else if (answer.content) messages = [...asked, { role: "assistant", content: answer.content }];
  else box.remove();
  working(false);
}

function working(on) {
  running = on ? new AbortController() : null;
  log.setAttribute("aria-busy", String(on));
  stop.hidden = !on;
  send.hidden = on;
  if (on) figures.textContent = "waiting for the first token";
  else text.focus();
}

/** One answer as it comes, and its figures. */
class Answer {
  constructor(box) {
    this.box = box;
    this.content = "";
    this.pieces = 0;
    this.tokens = null;
    this.note = "";
    this.began = performance.now();
    this.first = null;
    this.last = null;
  }

  add(chunk) {
    if (chunk.error) throw new Error(chunk.error.message ?? "the stream broke off");
    if (chunk.usage) this.tokens = chunk.usage.completion_tokens;
    const choice = chunk.choices?.[0];
    if (choice?.finish_reason === "length") this.note = `cut off at ${MAX_TOKENS} tokens`;
    const piece = choice?.delta?.content;
    if (!piece) return;
    this.last = performance.now();
    this.first ??= this.last;
    this.pieces += 1;
    this.content += piece;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    this.box.textContent = this.content;
    if (atEnd) log.scrollTop = log.scrollHeight;
    figures.textContent = this.figures();
  }

  /** Time to the first token, rate, length. A piece is taken for a token until the server has counted them. */
  figures() {
    if (this.first === null) return this.note;
    const tokens = this.tokens ?? this.pieces;
    const seconds = (this.last - this.first) / 1000;
    const parts = [`first token ${((this.first - this.began) / 1000).toFixed(2)} s`, `${tokens} tokens`];
    // The first token's time is the prompt's; the rate is that of the tokens after it.
    if (tokens > 1 && seconds > 0) parts.splice(1, 0, `${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
    if (this.note) parts.push(this.note);
    return parts.join(" · ");
  }
}

async function stream(body, answer, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({
      ...body,
      stream: true,
      stream_options: { include_usage: true },
      max_tokens: MAX_TOKENS,
    }),
    signal,
  });
  if (!response.ok) throw new Error(await refusal(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      answer.add(JSON.parse(data));
    }
  }
  throw new Error("the stream ended before the answer was complete");
}

async function refusal(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

// The chat page: conversations, the one that is shown, and the answer that is being written.

import { ApiError, modelName, streamChat } from "/page/api.js";
import { showText } from "/page/markup.js";
import { loadChats, loadSettings, newChat, saveChats, saveSettings } from "/page/store.js";
import { TokenPieces, explainTokens, showTokens } from "/page/tokens.js";

const NUMBERS = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "max_tokens", "seed"];
const N_ALTERNATIVES = 5;
const RETRY_MS = 2000;

const $ = (id) => document.getElementById(id);
const settings = loadSettings();
let chats = loadChats();
let chat = chats[0] ?? newChat();
let running = null; // {controller, message, node} of the answer being written

// Drawing.

function button(text, action, label) {
  const node = document.createElement("button");
  node.type = "button";
  node.textContent = text;
  if (label) node.setAttribute("aria-label", label);
  node.addEventListener("click", action);
  return node;
}

function drawChats() {
  const list = chats.includes(chat) ? chats : [chat, ...chats];
  $("chat-list").replaceChildren(
    ...list.map((item) => {
      const node = document.createElement("li");
      const open = button(item.title, () => show(item));
      open.setAttribute("aria-current", String(item === chat));
      node.append(open, button("✕", () => remove(item), `Delete ${item.title}`));
      return node;
    }),
  );
  $("title").textContent = chat.messages.length ? chat.title : "minfer";
}

function drawMessages() {
  const nodes = chat.messages.map((message) => messageNode(message));
  if (!nodes.length) {
    const empty = document.createElement("p");
    empty.className = "empty";
    empty.textContent = "What you write stays between this browser and the server.";
    nodes.push(empty);
  }
  $("messages").replaceChildren(...nodes);
  drawActions();
  $("messages").scrollTop = $("messages").scrollHeight;
}

function messageNode(message) {
  const node = document.createElement("article");
  node.className = `message ${message.role}`;
  node.setAttribute("aria-label", message.role === "user" ? "You" : "Answer");
  const body = document.createElement("div");
  body.className = "body";
  const foot = document.createElement("div");
  foot.className = "foot";
  node.append(body, foot);
  drawMessage(node, message);
  return node;
}

function drawMessage(node, message) {
  const body = node.querySelector(".body");
  if (message.role === "user") {
    body.textContent = message.content;
    return;
  }
  let thoughts = node.querySelector(".thoughts");
  if (message.reasoning && !thoughts) {
    thoughts = document.createElement("details");
    thoughts.className = "thoughts";
    const summary = document.createElement("summary");
    summary.textContent = "Thoughts";
    thoughts.append(summary, document.createElement("div"));
    body.before(thoughts);
  }
  if (thoughts) thoughts.lastElementChild.textContent = message.reasoning;
  if (message.tokens) showTokens(body, message.tokens.pieces);
  else showText(body, message.content);
  const foot = node.querySelector(".foot");
  let stats = foot.querySelector("span");
  if (!stats) foot.prepend((stats = document.createElement("span")));
  stats.textContent = message.stats ?? "";
}

/** The buttons below the last answer. */
function drawActions() {
  for (const old of document.querySelectorAll(".foot button")) old.remove();
  const last = $("messages").lastElementChild;
  if (running || !chat.messages.length) return;
  const message = chat.messages.at(-1);
  const foot = last.querySelector(".foot");
  foot.append(button(message.role === "user" ? "Try again" : "Regenerate", regenerate));
  if (message.role === "assistant") {
    foot.append(button("Copy", () => navigator.clipboard?.writeText(message.content)));
  }
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

// Conversations.

function show(item) {
  stop();
  chat = item;
  closeChats();
  notice("");
  drawChats();
  drawMessages();
  $("prompt").focus();
}

function remove(item) {
  if (item === chat) stop();
  chats = chats.filter((other) => other !== item);
  saveChats(chats);
  if (item === chat) show(chats[0] ?? newChat());
  else drawChats();
}

function keep() {
  chats = [chat, ...chats.filter((other) => other !== chat)];
  if (!saveChats(chats)) notice("This browser has no room left for conversations: delete some, or they are lost on reload.");
  drawChats();
}

function closeChats() {
  $("chats").classList.remove("open");
  $("open-chats").setAttribute("aria-expanded", "false");
}

// Asking.

function request() {
  const past = chat.messages.map(({ role, content }) => ({ role, content }));
  const messages = settings.system ? [{ role: "system", content: settings.system }, ...past] : past;
  const numbers = Object.fromEntries(NUMBERS.filter((name) => settings[name] !== undefined).map((name) => [name, settings[name]]));
  const logprobs = settings.probabilities ? { logprobs: true, top_logprobs: N_ALTERNATIVES } : {};
  return { messages, ...numbers, ...logprobs };
}

async function answer() {
  notice("");
  const body = request();
  const message = { role: "assistant", content: "", reasoning: "", stats: "waiting" };
  if (body.logprobs) message.tokens = new TokenPieces();
  chat.messages.push(message);
  const node = messageNode(message);
  $("messages").append(node);
  const mine = (running = { controller: new AbortController(), message, node, chat });
  drawRunning();
  try {
    await follow(mine, streamChat(body, settings.key, mine.controller.signal));
  } catch (error) {
    if (mine.controller.signal.aborted) message.stats = `${message.stats} · stopped`;
    else tell(error, message);
  }
  if (!message.content && !message.reasoning) mine.chat.messages.splice(mine.chat.messages.indexOf(message), 1);
  if (running === mine) running = null;
  if (chat === mine.chat) {
    keep();
    drawRunning();
    if (chat.messages.at(-1) === message) drawMessage(node, message);
    else node.remove();
    drawActions();
    $("prompt").focus({ preventScroll: true });
  } else {
    saveChats(chats);
  }
}

async function follow({ message, node }, stream) {
  const startMs = performance.now();
  let firstMs = null;
  let nTokens = 0;
  let frame = 0;
  const draw = () => {
    frame = 0;
    const view = $("messages");
    const isAtEnd = view.scrollHeight - view.scrollTop - view.clientHeight < 80;
    drawMessage(node, message);
    if (isAtEnd) view.scrollTop = view.scrollHeight;
  };
  try {
    for await (const { choices, timings, prompt_progress: progress } of stream) {
      const { delta, logprobs } = choices[0] ?? { delta: {} };
      if (progress) message.stats = `reading the prompt: ${progress.processed} of ${progress.total} tokens`;
      if (delta.content || delta.reasoning_content) {
        firstMs ??= performance.now();
        nTokens += logprobs?.content.length ?? 1;
        message.content += delta.content ?? "";
        message.reasoning += delta.reasoning_content ?? "";
        const rate = (1000 * nTokens) / (performance.now() - firstMs);
        message.stats = nTokens > 1 ? `${nTokens} tokens · ${rate.toFixed(1)} tokens/s` : "";
      }
      if (logprobs) message.tokens?.push(logprobs.content);
      if (timings) message.stats = statsLine(timings, (firstMs ?? performance.now()) - startMs);
      frame ||= requestAnimationFrame(draw);
    }
  } finally {
    cancelAnimationFrame(frame);
  }
  draw();
}

function statsLine(timings, firstMs) {
  const nPrompt = timings.prompt_n + timings.cache_n;
  return [
    `${timings.predicted_n} tokens · ${timings.predicted_per_second.toFixed(1)} tokens/s`,
    `prompt ${nPrompt} tokens, ${timings.cache_n} from the cache`,
    `first token after ${(firstMs / 1000).toFixed(2)} s`,
  ].join(" · ");
}

function tell(error, message) {
  message.stats = "";
  notice(error instanceof TypeError ? "The server can't be reached." : error.message);
  if (error instanceof ApiError && error.status === 401) openSettings("set-key");
}

function drawRunning() {
  $("stop").hidden = !running;
  $("send").hidden = Boolean(running);
  $("messages").setAttribute("aria-busy", String(Boolean(running)));
  for (const old of document.querySelectorAll(".foot button, .empty")) old.remove();
}

function send() {
  const text = $("prompt").value.trim();
  if (!text || running) return;
  $("prompt").value = "";
  if (!chat.messages.length) chat.title = text.split("\n")[0].slice(0, 60);
  const message = { role: "user", content: text };
  chat.messages.push(message);
  $("messages").append(messageNode(message));
  keep();
  answer();
  $("messages").scrollTop = $("messages").scrollHeight;
}

function regenerate() {
  if (running) return;
  if (chat.messages.at(-1)?.role === "assistant") {
    chat.messages.pop();
    $("messages").lastElementChild.remove();
  }
  answer();
}

function stop() {
  running?.controller.abort();
}

// Settings.

function openSettings(focused) {
  $("settings").showModal();
  if (focused) $(focused).focus();
}

function applyTheme() {
  if (settings.theme) document.documentElement.dataset.theme = settings.theme;
  else delete document.documentElement.dataset.theme;
}

for (const name of [...NUMBERS, "system", "theme", "key", "probabilities"]) {
  const field = $(`set-${name}`);
  if (field.type === "checkbox") field.checked = Boolean(settings[name]);
  else field.value = settings[name] ?? "";
  field.addEventListener("change", () => {
    const value = field.type === "checkbox" ? field.checked : field.type === "number" ? field.valueAsNumber : field.value;
    if (value === "" || value === false || Number.isNaN(value)) delete settings[name];
    else settings[name] = value;
    saveSettings(settings);
    applyTheme();
    if (name === "key") greet();
  });
}

// Wiring.

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
$("stop").addEventListener("click", stop);
$("new-chat").addEventListener("click", () => show(newChat()));
$("open-settings").addEventListener("click", () => openSettings());
$("open-chats").addEventListener("click", () => {
  const isOpen = $("chats").classList.toggle("open");
  $("open-chats").setAttribute("aria-expanded", String(isOpen));
});
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || $("settings").open) return;
  stop();
  closeChats();
});
addEventListener("pagehide", () => saveChats(chats)); // also what is half written
addEventListener("storage", () => {
  if (running) return; // this page's own state is the newer one
  chats = loadChats();
  chat = chats.find((other) => other.id === chat.id) ?? chat;
  drawChats();
  drawMessages();
});
explainTokens($("messages"), $("tip"));

async function greet() {
  const name = await modelName(settings.key).catch(() => null);
  $("model").textContent = name ?? "";
  if (!name && !settings.key) setTimeout(greet, RETRY_MS); // it may still be loading
}

applyTheme();
drawChats();
drawMessages();
greet();

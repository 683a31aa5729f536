// Conversations and settings, kept in this browser.

const CHATS = "minfer.chats";
const SETTINGS = "minfer.settings";

function read(key, fallback) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? fallback;
  } catch {
    return fallback; // something else wrote there
  }
}

/** All conversations, the latest first: [{id, title, messages: [{role, content, reasoning?, stats?}]}]. */
export function loadChats() {
  const chats = read(CHATS, []);
  if (!Array.isArray(chats)) return [];
  const whole = chats.filter((chat) => chat?.id && Array.isArray(chat.messages));
  const said = ({ role, content, reasoning }) => role === "user" || content || reasoning; // not: asked for, and left
  return whole.map((chat) => ({ ...chat, messages: chat.messages.filter(said) }));
}

/** Keeps the conversations; false where the browser has no room or does not allow it. */
export function saveChats(chats) {
  const kept = chats.filter((chat) => chat.messages.length > 0);
  const plain = (name, value) => (name === "tokens" ? undefined : value); // too large to keep
  try {
    localStorage.setItem(CHATS, JSON.stringify(kept, plain));
    return true;
  } catch {
    return false;
  }
}

export function newChat() {
  return { id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: "New chat", messages: [] };
}

export function loadSettings() {
  return { ...read(SETTINGS, {}) };
}

export function saveSettings(settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch {
    // they hold until the page is closed
  }
}

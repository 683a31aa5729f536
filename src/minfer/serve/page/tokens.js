// Tokens with their probabilities: coloured by doubt, and explained under the pointer.

/** Joins tokens to pieces of whole characters: [{text, p, top: [[text, p], ...]}]. */
export class TokenPieces {
  #decoder = new TextDecoder();
  #logprob = 0;
  pieces = [];

  push(entries) {
    for (const entry of entries) {
      this.#logprob += entry.logprob;
      const text = this.#decoder.decode(new Uint8Array(entry.bytes), { stream: true });
      if (!text) continue; // a part of a character
      const top = entry.top_logprobs.map((other) => [other.token, Math.exp(other.logprob)]);
      this.pieces.push({ text, p: Math.exp(this.#logprob), top });
      this.#logprob = 0;
    }
  }
}

/** Shows pieces in a node; those that are there already stay. */
export function showTokens(node, pieces) {
  node.classList.add("tokens");
  for (const piece of pieces.slice(node.children.length)) {
    const span = document.createElement("span");
    span.className = "token";
    span.textContent = piece.text;
    span.style.setProperty("--doubt", (1 - piece.p).toFixed(3));
    span.piece = piece;
    node.append(span);
  }
}

function percent(p) {
  return `${(100 * p).toFixed(1).padStart(5)}%`;
}

/** Explains the token under the pointer in `tip`. */
export function explainTokens(root, tip) {
  root.addEventListener("pointerover", ({ target }) => {
    tip.hidden = !target.piece;
    if (!target.piece) return;
    const { text, p, top } = target.piece;
    const others = top.filter(([other]) => other !== text).map(([other, q]) => `${percent(q)}  ${JSON.stringify(other)}`);
    tip.textContent = [`${percent(p)}  ${JSON.stringify(text)}`, ...others].join("\n");
    const box = target.getBoundingClientRect();
    const left = Math.min(box.left, innerWidth - tip.offsetWidth - 8);
    const above = box.top - tip.offsetHeight - 6;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 0 ? above : box.bottom + 6}px`;
  });
  root.addEventListener("pointerleave", () => (tip.hidden = true));
}

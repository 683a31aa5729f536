// Text as paragraphs, headings and blocks of code. Everything a model wrote goes into the page as text, never as HTML.

/** The blocks of a text: [{kind: "p" | "h3" | "pre", text}]. A block of code that has no end yet reaches to the end. */
export function blocksOf(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const close = (kind) => {
    const joined = lines.join("\n");
    if (kind === "pre" || joined.trim()) blocks.push({ kind, text: joined });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = line.match(/^\s*(`{3,}|~{3,})/)?.[1];
    if (fence !== null) {
      if (mark && mark[0] === fence[0] && mark.length >= fence.length && line.trim() === mark) {
        close("pre");
        fence = null;
      } else {
        lines.push(line);
      }
    } else if (mark) {
      close("p");
      fence = mark;
    } else if (/^#{1,6} /.test(line)) {
      close("p");
      blocks.push({ kind: "h3", text: line.replace(/^#+ /, "") });
    } else if (line.trim() === "") {
      close("p");
    } else {
      lines.push(line);
    }
  }
  close(fence === null ? "p" : "pre");
  return blocks;
}

function element(block) {
  const node = document.createElement(block.kind);
  if (block.kind === "pre") {
    const code = document.createElement("code");
    code.textContent = block.text;
    node.append(code);
    return node;
  }
  for (const part of block.text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
    if (/^`.+`$/.test(part)) {
      const code = document.createElement("code");
      code.textContent = part.slice(1, -1);
      node.append(code);
    } else if (/^\*\*.+\*\*$/.test(part)) {
      const strong = document.createElement("strong");
      strong.textContent = part.slice(2, -2);
      node.append(strong);
    } else {
      node.append(part);
    }
  }
  return node;
}

/** Shows a text in a node. Blocks that have not changed since the last time stay as they are. */
export function showText(node, text) {
  const before = node.blocks ?? [];
  const blocks = blocksOf(text);
  blocks.forEach((block, i) => {
    if (before[i]?.kind === block.kind && before[i].text === block.text) return;
    if (i < node.children.length) node.children[i].replaceWith(element(block));
    else node.append(element(block));
  });
  while (node.children.length > blocks.length) node.lastElementChild.remove();
  node.blocks = blocks;
}

// The server's API: a streamed answer as events.

export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error?.code;
  }
}

function headers(key) {
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

/** The name of the model, or null while it is not to be had. */
export async function modelName(key) {
  const response = await fetch("/v1/models", { headers: headers(key) });
  return response.ok ? (await response.json()).data[0].id : null;
}

/** Asks for an answer, and yields the chunks of its stream as they come. Aborting the signal cancels it. */
export async function* streamChat(body, key, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers(key),
    body: JSON.stringify({ ...body, stream: true, return_progress: true }),
    signal,
  });
  if (!response.ok) {
    const answer = await response.json().catch(() => null);
    throw new ApiError(response.status, answer?.error);
  }
  let held = "";
  for await (const text of chunks(response.body.pipeThrough(new TextDecoderStream()))) {
    const events = (held + text).split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue; // a comment that keeps the connection alive
      const data = event.slice("data: ".length);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(response.status, chunk.error);
      yield chunk;
    }
  }
  throw new Error("the connection was lost before the answer was complete");
}

/** What a stream holds; some browsers can't iterate over one yet. */
async function* chunks(stream) {
  const reader = stream.getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) yield part.value;
  } finally {
    reader.releaseLock();
  }
}

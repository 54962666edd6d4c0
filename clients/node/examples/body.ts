/** Where the value of a member stands, in bytes. */
type Span = readonly [from: number, to: number];

/** A request that cannot be read; its message is for the caller. */
export class BadBody extends Error {}

/**
 * A JSON object as it was sent. It knows where the values of its members stand, so that one can be replaced and every
 * other byte stays as it was.
 */
export class JsonObject {
  // One character a byte: whatever JSON is made of is ASCII, so places found here are places in the bytes.
  readonly #bytes: string;
  readonly #values = new Map<string, Span>();

  /** Read it. A name that stands there twice is refused: two readers might choose differently. */
  constructor(body: Buffer) {
    try {
      const parsed: unknown = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body));
      if (typeof parsed !== "object" || parsed === null || Array.isArray(parsed)) throw new Error();
    } catch {
      throw new BadBody("the request is no JSON object");
    }
    this.#bytes = body.toString("latin1");
    for (const [name, span] of topLevel(this.#bytes)) {
      if (this.#values.has(name)) throw new BadBody(`the member ${JSON.stringify(name)} stands there twice`);
      this.#values.set(name, span);
    }
  }

  /** The value of a member; empty when it is no string. */
  text(name: string): string {
    const span = this.#values.get(name);
    const value: unknown = span && JSON.parse(utf8(this.#bytes.slice(...span)));
    return typeof value === "string" ? value : "";
  }

  /** The object with other values for these members, and no other byte changed. */
  with(changed: Record<string, string>): Buffer {
    let bytes = this.#bytes;
    const place = (name: string): Span => this.#values.get(name) ?? [0, 0];
    const names = Object.keys(changed).sort((a, b) => place(b)[0] - place(a)[0]);
    for (const name of names) { // from the last to the first, so that places stay true
      const value = Buffer.from(JSON.stringify(changed[name])).toString("latin1");
      const span = this.#values.get(name);
      const start = bytes.indexOf("{") + 1;
      const [from, to] = span ?? [start, start];
      bytes = bytes.slice(0, from) + (span ? value : `${JSON.stringify(name)}: ${value}, `) + bytes.slice(to);
    }
    return Buffer.from(bytes, "latin1");
  }
}

/** The members of an object that is known to be valid JSON. */
function* topLevel(bytes: string): Generator<[string, Span]> {
  let depth = 0;
  let name: string | undefined;
  let from = -1;
  for (const { 0: token, index } of bytes.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)) {
    const opens = token === "{" || token === "[";
    if (depth === 1 && token === ":") continue;
    if (depth === 1 && name === undefined && token.startsWith('"')) {
      name = JSON.parse(utf8(token)) as string;
      continue;
    }
    if (depth === 1 && name !== undefined && from < 0 && token !== ",") from = index;
    if (opens) depth += 1;
    if (token === "}" || token === "]") depth -= 1;
    if (depth === 1 && name !== undefined && from >= 0) {
      yield [name, [from, index + token.length]];
      name = undefined;
      from = -1;
    }
  }
}

function utf8(bytes: string): string {
  return Buffer.from(bytes, "latin1").toString("utf8");
}

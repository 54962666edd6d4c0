/**
 * A coalescing client against a plain one with 256 calls in flight, in turns, against a running server:
 *
 *     TIDEGATE_SERVER=127.0.0.1:50051 npm run bench
 *
 * Prints the decisions a second of both and the median of the ratios.
 */
import { Client } from "../src/index.js";

const IN_FLIGHT = 256;
const ROUNDS = 5;
const model = process.env["TIDEGATE_BENCH_MODEL"] ?? "managed/routine";

async function decisionsPerSecond(coalesce: boolean): Promise<number> {
  const client = new Client({ coalesce });
  const ask = async (ms: number) => {
    let made = 0;
    const begun = performance.now();
    const gateway = async (worker: number) => {
      while (performance.now() - begun < ms) {
        const decision = await client.mayForward({ model, workerId: `worker-${worker}`, requestBytes: 2048n });
        if (!decision.forward) throw decision.error;
        made += 1;
      }
    };
    await Promise.all(Array.from({ length: IN_FLIGHT }, (_, worker) => gateway(worker)));
    return (made * 1000) / (performance.now() - begun);
  };
  try {
    await ask(300); // the connection, and the pins
    return await ask(1000);
  } finally {
    client.close();
  }
}

function median(values: number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]!;
}

const [coalesced, plain]: [number[], number[]] = [[], []];
for (let round = 0; round < ROUNDS; round += 1) {
  coalesced.push(await decisionsPerSecond(true));
  plain.push(await decisionsPerSecond(false));
}
const ratios = coalesced.map((rate, round) => rate / plain[round]!);
const [low, high] = [Math.min(...ratios).toFixed(2), Math.max(...ratios).toFixed(2)];
console.log(`decisions/s, coalesced : plain  ${median(ratios).toFixed(2)} (${low} to ${high})`);
console.log(`medians  ${median(coalesced).toFixed(0)} : ${median(plain).toFixed(0)}`);

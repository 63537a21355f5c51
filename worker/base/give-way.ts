/**
 * Where the cores do not suffice for all, the gateway goes first. It is one thread that every request of every tenant
 * goes through, and it needs little, while a step of a worker takes all cores that it gets: beside steps of equal
 * priority the gateway waits for a core again and again, up to 10 ms each time on two cores. Documents are read
 * with a lower priority still.
 */
import { getPriority, setPriority } from "node:os";

const nicerThanGateway = 2;

/** Call before any thread is started: threads take their priority from the one that starts them. */
export function giveWay(): void {
  setPriority(Math.min(getPriority() + nicerThanGateway, 19));
}

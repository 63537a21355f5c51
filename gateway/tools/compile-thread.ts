/** The program of a thread of the pool. */
import { serveTasks } from "../threads/serve.ts";
import { tasks } from "./compile-tasks.ts";

serveTasks(tasks);

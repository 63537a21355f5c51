/** Where a thread of the pool begins. */
import { serveTasks } from "../threads/serve.ts";
import { tasks } from "./compile-tasks.ts";

serveTasks(tasks);

/** The program of a thread of the pool. */
import { giveWay, serveTasks } from "../threads/serve.ts";
import { tasks } from "./compile-tasks.ts";

giveWay();
serveTasks(tasks);

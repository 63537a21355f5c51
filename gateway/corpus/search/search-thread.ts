/** The program of a thread that searches. */
import { giveWay, serveTasks } from "../../threads/serve.ts";
import { searchTasks } from "./rank.ts";

giveWay();
serveTasks(searchTasks());

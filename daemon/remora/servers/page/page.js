// The status page: reads /-/status again and again and shows it. It changes nothing, and writes text, never markup.

const REFRESH_MS = 2000;
const FAILING = new Set(["retrying", "quarantined", "stopped"]);
const NONE = "\u2013";
const UNKNOWN = "not known";

const $ = (id) => document.getElementById(id);
const view = { status: null, rates: new Map(), sort: "state", down: false, opened: new Set() };

// ------------------------------------------------------------------------------------------ words for numbers

const whole = new Intl.NumberFormat("en");
const count = (value) => (value === null || value === undefined ? NONE : whole.format(value));

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
  return `${at ? value.toFixed(1) : value} ${units[at]}`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

const several = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

// ----------------------------------------------------------------------------------------- what the tables show

const SEVERITY = ["stopped", "quarantined", "retrying", "held", "starting", "waiting", "shaped", "finishing", "delivering", "idle"];
const colour = (state) => (state === "stopped" || state === "quarantined" ? "bad" : FAILING.has(state) ? "odd" : "");

function topics(status) {
  const found = new Map();
  for (const queue of status.shards) {
    const name = queue.topic || queue.queue;
    if (!found.has(name)) found.set(name, { name, queues: [], figures: {} });
    found.get(name).queues.push(queue);
  }
  for (const figures of status.topics) {
    if (!found.has(figures.topic)) found.set(figures.topic, { name: figures.topic, queues: [], figures });
    else found.get(figures.topic).figures = figures;
  }
  return [...found.values()].map((topic) => ({ ...topic, ...summed(topic) }));
}

// The state of a topic is the daemon's to say, as `remora status` shows it; here it only gets the number of its queues.
function summed({ queues, figures }) {
  const state = figures.state ?? "";
  const same = queues.filter((queue) => queue.state === state).length;
  const reasons = new Set([figures.reason, ...queues.flatMap((queue) => queue.remarks)].filter(Boolean));
  return {
    state,
    states: (figures.state_text ?? "") + (same < queues.length ? `, ${same} of ${several(queues.length, "queue")}` : ""),
    since: figures.since_seconds ?? 0,
    endpoints: [...new Set(queues.map((queue) => queue.endpoint).filter(Boolean))].join(", "),
    delivery: [...new Set(queues.map((queue) => queue.delivery).filter(Boolean))].join(", "),
    reason: [...reasons].join("; "),
    failure: failed(figures.last_failure, figures.next_attempt_seconds ?? null, [...reasons].join("; ")),
    failing: FAILING.has(state),
  };
}

const failed = (last, seconds, shown) => [
  last && `${duration(last.age_seconds)} ago, ${last.kind}${last.reason === shown ? "" : `: ${last.reason}`}`,
  seconds !== null && (seconds < 0.001 ? "next attempt now" : `next attempt in ${duration(seconds)}`),
].filter(Boolean).join("; ");

const said = (queue) => [queue.reason, ...queue.remarks].filter(Boolean);
const waits = ({ backlog_entries: entries, backlog_exact: exact }) => `${exact === false ? "~" : ""}${count(entries)}`;

// Each column: what its head says, what a topic shows, what a queue of it shows, what it is sorted by.
const COLUMNS = {
  topic: { title: "Topic", topic: (t) => t.name, queue: (q) => q.queue, by: (t) => t.name },
  state: {
    title: "State", topic: (t) => t.states, queue: (q) => (q.trying ? `${q.state}, trying now` : q.state),
    by: (t) => SEVERITY.indexOf(t.state) + (t.state ? 0 : SEVERITY.length + 1),
  },
  since: { title: "For", number: true, topic: (t) => (t.queues.length ? duration(t.since) : ""),
    queue: (q) => duration(q.since_seconds), by: (t) => -t.since },
  queues: { title: "Queues", less: true, number: true, topic: (t) => count(t.queues.length), queue: (q) => `worker ${q.worker}`,
    by: (t) => -t.queues.length },
  waiting: { title: "Waiting", number: true, topic: (t) => waits(t.figures), queue: () => "",
    by: (t) => -(t.figures.backlog_entries ?? -1) },
  oldest: { title: "Oldest", number: true, topic: (t) => duration(t.figures.oldest_age_seconds), queue: () => "",
    by: (t) => -(t.figures.oldest_age_seconds ?? -1) },
  rate: { title: "Per second", less: true, number: true, topic: (t) => count(view.rates.get(t.name)), queue: () => "",
    by: (t) => -(view.rates.get(t.name) ?? -1) },
  delivered: { title: "Delivered", less: true, number: true, topic: (t) => count(t.figures.delivered_entries), queue: () => "",
    by: (t) => -(t.figures.delivered_entries ?? -1) },
  dead: { title: "Dead letters", number: true, topic: (t) => count(t.figures.dead_letters), queue: () => "",
    by: (t) => -(t.figures.dead_letters ?? -1) },
  ledger: { title: "Ledger", less: true, number: true, topic: (t) => ledger(t.figures), queue: () => "",
    by: (t) => -Math.abs(t.figures.ledger?.unaccounted ?? 0) },
  budget: { title: "Budget left", less: true, number: true, topic: (t) => budget(t.figures), queue: () => "",
    by: (t) => t.figures.slo?.budget_left ?? Infinity },
  endpoint: { title: "Endpoint", wide: true, topic: (t) => t.endpoints, queue: (q) => q.delivery,
    by: (t) => t.endpoints },
  reason: { title: "Reason", wide: true, topic: (t) => t.reason, queue: (q) => said(q).join("; "),
    by: (t) => t.reason || "\uffff" },
  failure: { title: "Last failure", less: true, wide: true, topic: (t) => t.failure,
    queue: (q) => [q.failures && several(q.failures, "failure"), failed(q.last_failure, q.next_attempt_seconds ?? null, q.reason)]
      .filter(Boolean).join("; "),
    by: (t) => t.figures.last_failure?.age_seconds ?? Infinity },
};

// What is left of what the topic's service level allows to be late, since the workers' start.
const budget = ({ slo }) => (slo ? `${(100 * slo.budget_left).toFixed(1)} % of ${slo.objective}` : "");

function ledger(figures) {
  if (!figures.ledger) return NONE;
  const { unaccounted, delivered, committed } = figures.ledger;
  return unaccounted ? `${count(unaccounted)} unaccounted` : `${count(delivered)} of ${count(committed)}`;
}

// ---------------------------------------------------------------------------------------------- rows that stay

// Rows and cells are kept and changed in place, so that focus, selection and scrolling outlive a refresh.
function fill(body, rows) {
  const old = new Map([...body.children].map((row) => [row.dataset.key, row]));
  let before = body.firstChild;
  for (const { key, cells, kind, opened } of rows) {
    const row = old.get(key) ?? Object.assign(document.createElement("tr"), { className: kind ?? "" });
    old.delete(key);
    row.dataset.key = key;
    row.dataset.opened = String(opened);
    cells.forEach((cell, at) => write(row, at, cell, opened));
    if (row === before) before = before.nextSibling;
    else body.insertBefore(row, before);
  }
  for (const row of old.values()) row.remove();
}

// Text that may be broken behind a dot or a slash, but in no number with its unit, and not before a host's port.
function put(element, text) {
  if (element.textContent === text) return;
  const nodes = text.split(/([\w-]*:\d{1,5}\b|\d[\d,.]*(?: (?:s|min|h|d)\b)?)/).flatMap((part, at) => {
    if (at % 2) return [Object.assign(document.createElement("span"), { className: "whole", textContent: part })];
    return part.split(/(?<=[./])/).flatMap((each) => [each, document.createElement("wbr")]).slice(0, -1);
  });
  element.replaceChildren(...nodes);
}

function write(row, at, { text, kind = "", title }, opened) {
  const cell = row.cells[at] ?? row.insertCell();
  cell.className = kind;
  cell.dataset.title = title;
  if (at === 0 && opened !== undefined) {
    const button = cell.firstElementChild ?? cell.appendChild(document.createElement("button"));
    button.setAttribute("aria-expanded", String(opened));
    if (button.textContent !== text) button.textContent = text;
  } else put(cell, text);
}

function heads(table, titles) {
  const row = table.tHead.rows[0] ?? table.tHead.insertRow();
  titles.forEach(({ title, number, key }, at) => {
    const head = row.cells[at] ?? row.appendChild(document.createElement("th"));
    head.className = number ? "number" : "";
    head.scope = "col";
    if (!key) {
      head.textContent = title;
      return;
    }
    const button = head.firstElementChild ?? head.appendChild(document.createElement("button"));
    button.textContent = title;
    button.dataset.sort = key;
    if (view.sort === key) head.setAttribute("aria-sort", view.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

function cellsOf(columns, each, what) {
  return columns.map(([name, column]) => {
    const { number, wide, less } = column;
    const kinds = [number && "number", wide && "wide", less && "less", name === "state" && colour(each.state)];
    return { text: column[what](each), title: column.title, kind: kinds.filter(Boolean).join(" ") };
  });
}

function topicRows(rows) {
  const columns = Object.entries(COLUMNS);
  return rows.flatMap((topic) => {
    const opened = view.opened.has(topic.name);
    const own = { key: `topic ${topic.name}`, opened, cells: cellsOf(columns, topic, "topic") };
    const queues = opened ? topic.queues : [];
    return [own, ...queues.map((queue) => ({
      key: `queue ${queue.queue}`, kind: "queue", cells: cellsOf(columns, queue, "queue"),
    }))];
  });
}

// ----------------------------------------------------------------------------------------------------- drawing

function draw() {
  const status = view.status;
  if (!status) return;
  const all = topics(status);
  drawHealth(status);
  drawSummary(status, all);
  drawProblems(status, all);
  drawTopics(all);
  drawLeft(status);
  drawWorkers(status);
}

function drawHealth(status) {
  $("version").textContent = [status.version, status.host && `on ${status.host}`].filter(Boolean).join(" ");
  const reasons = [...new Set([...status.reasons, ...status.ready_to_deliver.reasons])];
  const word = status.draining ? "Draining" : status.ready ? "Ready" : "Not ready";
  const but = status.ready && !status.draining ? ", but" : ":";
  $("health").textContent = reasons.length ? `${word}${but} ${reasons.join("; ")}` : word;
  $("health").className = !status.ready ? "bad" : reasons.length || status.draining ? "odd" : "good";
  document.title = `Remora: ${word.toLowerCase()}`;
}

function drawSummary(status, all) {
  const sum = (what) => all.reduce((total, { figures }) => total + (figures[what] ?? 0), 0);
  const looked = all.filter(({ figures }) => (figures.backlog_entries ?? null) !== null);
  const ages = all.map(({ figures }) => figures.oldest_age_seconds).filter((age) => age !== null && age !== undefined);
  const silent = status.workers.length && !status.workers.some((each) => each.answers);
  const rate = [...view.rates.values()].reduce((total, each) => total + each, 0);
  const shown = {
    Store: status.store.connected ? status.store.description : status.store.state,
    Workers: `${status.workers.filter((each) => each.ready).length} of ${status.workers_wanted ?? status.workers.length} ready`,
    Queues: silent ? UNKNOWN : `${count(status.shards.length)} held`,
    Waiting: !silent && (looked.length || !all.length)
      ? (looked.length < all.filter(({ state }) => state).length ? "at least " : "")
        + (looked.some(({ figures }) => figures.backlog_exact === false) ? "~" : "") + count(sum("backlog_entries"))
      : NONE,
    "Oldest event": ages.length ? duration(Math.max(...ages)) : NONE,
    "Delivered per second": view.rates.size ? count(rate) : NONE,
    "Dead letters": count(status.dead_letters),
    Ingest: status.ingest === null ? UNKNOWN : status.ingest || "off",
  };
  const list = $("summary");
  Object.entries(shown).forEach(([term, value], at) => {
    const box = list.children[at] ?? list.appendChild(document.createElement("div"));
    const [title, text] = box.children.length
      ? box.children
      : [box.appendChild(document.createElement("dt")), box.appendChild(document.createElement("dd"))];
    title.textContent = term;
    text.textContent = value;
  });
}

// The topics whose worst queue takes no events because of a leak, or will be full within a day.
const roomLines = (all) => all.filter(({ figures }) => figures.room?.advice).map(({ name, figures: { room } }) => (
  `${name}: ${room.advice}${room.leaks ? `: remora shard heal --topic ${name}` : ""}`
));

// The topics of which entries were moved beside their queues.
const spillLines = (all) => all.filter(({ figures }) => figures.spilled_entries).map(({ name, figures }) => (
  `${name}: ${count(figures.spilled_entries)} spilled, delivered first: remora spill list`
));

function drawProblems(status, all) {
  const lines = status.store.damaged.map((each) => `damaged: ${each}`);
  for (const each of status.destinations ?? []) {
    const events = (each.entries_at_least ? "at least " : "")
      + (each.entries === null ? "? events" : several(each.entries, "event"));
    const next = each.next_attempt_seconds === null ? "" : `, next attempt in ${duration(each.next_attempt_seconds)}`;
    const [place, age] = [each.destination || "unknown", duration(each.since_seconds)];
    lines.push(`${place}: ${each.cause}: ${several(each.topics, "topic")}, ${events}, `
      + `${each.state_text} for ${age}${next}: ${each.named}`);
  }
  for (const { name, figures } of all.filter((each) => each.figures.dead_letters)) {
    lines.push(`${name}: ${several(figures.dead_letters, "dead letter")}: remora dlq list --topic ${name}`);
  }
  for (const { number } of status.workers.filter((each) => !each.answers)) {
    lines.push(`worker ${number} does not answer`);
  }
  for (const { name, figures } of all.filter((each) => each.figures.ledger?.unaccounted)) {
    lines.push(`${name}: ${several(figures.ledger.unaccounted, "entry", "entries")} unaccounted for`);
  }
  lines.push(...roomLines(all), ...spillLines(all), ...(status.slow ?? []).map((each) => `slow: ${each}`));
  const list = $("problem-list");
  const most = 50;
  const texts = lines.length > most ? [...lines.slice(0, most), `and ${lines.length - most} more`] : lines;
  while (list.children.length > texts.length) list.lastElementChild.remove();
  texts.forEach((text, at) => {
    const item = list.children[at] ?? list.appendChild(document.createElement("li"));
    put(item, text);
  });
  $("problems").hidden = !texts.length;
}

function drawTopics(all) {
  heads($("topics"), Object.entries(COLUMNS).map(([key, { title, number }]) => ({ key, title, number })));
  const wanted = $("filter").value.toLowerCase();
  const text = ({ name, endpoints, reason, states, queues }) =>
    [name, endpoints, reason, states, ...queues.map((each) => each.queue)].join("\n").toLowerCase();
  const rows = all.filter((topic) => (!$("failing").checked || topic.failing) && text(topic).includes(wanted));
  const { by } = COLUMNS[view.sort];
  const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  rows.sort((a, b) => (view.down ? -1 : 1) * order(by(a), by(b)) || order(a.name, b.name));
  $("shown").textContent = `${rows.length < all.length ? `${rows.length} of ` : ""}${several(all.length, "topic")}`;
  fill($("topics").tBodies[0], topicRows(rows));
}

function plain(id, titles, rows) {
  heads($(id), titles.map((title) => ({ title })));
  fill($(id).tBodies[0], rows.map(([key, cells]) => ({
    key, cells: cells.map((text, at) => ({ text: String(text), title: titles[at] })),
  })));
}

function drawLeft(status) {
  $("left").hidden = !status.left.length;
  const groups = new Map();
  for (const { queue, reason, owner } of status.left) {
    const key = `${reason}\n${owner}`;
    groups.set(key, [...(groups.get(key) ?? []), queue]);
  }
  const more = (queues) => (queues.length > 3 ? ` and ${queues.length - 3} more` : "");
  const some = (queues) => `${queues.slice(0, 3).join(", ")}${more(queues)}`;
  const rows = [...groups].map(([key, queues]) => [key, [some(queues), ...key.split("\n")]]);
  plain("left-table", ["Queues", "Reason", "Owner"], rows);
}

function drawWorkers(status) {
  const own = status.workers.map((each) => [each.cookie, [
    `worker ${each.number}`, "this host", each.pid, each.shards, bytes(each.in_flight_bytes),
    each.ready ? "ready" : each.reasons.join("; ") || "not ready",
  ]]);
  const others = status.members.map((each) => [each.cookie, [
    each.cookie.split("/").at(-1).slice(0, 8), each.hostname ? `${each.hostname} (${each.host.slice(0, 8)})` : each.host, "", each.shards, "", each.draining ? "draining" : "takes part",
  ]]);
  plain("workers", ["Worker", "Host", "Process", "Queues", "In flight", "State"], [...own, ...others]);
}

// -------------------------------------------------------------------------------------------------- refreshing

function rates(status, before, seconds) {
  const earlier = new Map(before.topics.map((each) => [each.topic, each.delivered_entries]));
  const found = new Map();
  for (const { topic, delivered_entries: now } of status.topics) {
    const grown = now - (earlier.get(topic) ?? now);
    if (grown >= 0) found.set(topic, Math.round(grown / seconds)); // less than before: a worker has ended
  }
  return found;
}

let answeredAt = null;

async function refresh() {
  try {
    const answer = await fetch("-/status", { cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
    const status = await answer.json();
    const now = performance.now();
    if (view.status) view.rates = rates(status, view.status, (now - answeredAt) / 1000);
    [view.status, answeredAt] = [status, now];
    document.body.classList.remove("stale");
    draw();
    const time = new Date().toLocaleTimeString("en-GB");
    $("refreshed").textContent = `As of ${time}, refreshed every ${REFRESH_MS / 1000} s.`;
  } catch (error) {
    document.body.classList.add("stale");
    $("health").className = "bad";
    $("health").textContent = `The daemon does not answer (${error.message}); what is below is as last heard.`;
    document.title = "Remora: does not answer";
  }
}

async function run() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
  }
}

// -------------------------------------------------------------------------------------------------- what users do

function remember() {
  const kept = new URLSearchParams({ sort: view.sort });
  if (view.down) kept.set("down", "1");
  if ($("filter").value) kept.set("filter", $("filter").value);
  if ($("failing").checked) kept.set("failing", "1");
  history.replaceState(null, "", `#${kept}`);
  draw();
}

const kept = new URLSearchParams(location.hash.slice(1));
if (Object.hasOwn(COLUMNS, kept.get("sort") ?? "")) view.sort = kept.get("sort");
view.down = kept.has("down");
$("filter").value = kept.get("filter") ?? "";
$("failing").checked = kept.has("failing");

$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("input", remember);
$("topics").addEventListener("click", ({ target }) => {
  if (target.dataset.sort) {
    view.down = view.sort === target.dataset.sort && !view.down;
    view.sort = target.dataset.sort;
    remember();
  } else if (target.hasAttribute("aria-expanded")) {
    const name = target.textContent;
    if (!view.opened.delete(name)) view.opened.add(name);
    draw();
  }
});
document.addEventListener("visibilitychange", () => document.hidden || refresh());
run();

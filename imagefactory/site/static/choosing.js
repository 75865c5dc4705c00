/* Answers a question as imagefactory/site/choosing.py does: the order is the factory's, the fit is what images check. */
"use strict";
(() => {
  const { python, load, head, judge, budget } = ImagePicker;

  /** Judge a start; `room` is for how many users with the whole context each, 0 if the image refuses. */
  function fit(image, machine, given) {
    const judged = judge(image, { ...given, ...head(image) }, machine);
    if (judged.refusal || judged.findings.some(({ result }) => result === "fail")) return { judged, given, room: 0 };
    const { need, taken, fixed, asked } = budget(judged);
    const each = need.perSequence + asked * (need.perToken ?? 0);
    return { judged, given, room: each ? Math.floor((taken - fixed) / each) : 0 };
  }

  /** Return the start for a question: with the image's share of the memory, else with the largest that it allows. */
  function bestStart(image, machine, context, users) {
    const given = {};
    if (context && image.byName.MAX_MODEL_LEN.default !== String(context)) given.MAX_MODEL_LEN = String(context);
    const sequences = image.byName.MAX_NUM_SEQS.default;
    if (sequences && users > Number(sequences)) given.MAX_NUM_SEQS = String(users);
    const own = fit(image, machine, given);
    if (own.room >= users) return own;
    const more = fit(image, machine, { ...given, GPU_MEMORY_UTILIZATION: python.float(largest(image, machine)) });
    return more.room > own.room ? more : own;
  }

  const largest = (image, machine) => budget(judge(image, head(image), machine)).most;

  /** Return the image that stands for a model on a machine. */
  const imageOf = (data, model, machine) => {
    const entry = data.images.find((one) => one.model === model && one.machine === machine.name && one.default);
    return entry && load(data, entry);
  };

  /** Return the starts of all models for a use, what fits first. */
  function choose(data, order, { use, machine, context, users }) {
    const place = ({ room }) => (room >= users ? 0 : room ? 1 : 2);
    return order[use]
      .map((model) => ({ model, image: imageOf(data, model, machine) }))
      .filter(({ image }) => image)
      .map(({ model, image }) => ({ model, ...bestStart(image, machine, context, users) }))
      .sort((one, two) => place(one) - place(two));
  }

  const takes = ({ taken, share, known }) => taken + (share.holds_working ? 0 : known.working);

  /** Return a start that takes no more than a bound: with the image's own share of the memory, else with the largest. */
  function within(image, machine, bound) {
    const own = fit(image, machine, {});
    if (own.room && takes(budget(own.judged)) <= bound) return own;
    const { whole, share, known } = budget(judge(image, {}, machine));
    const most = Math.floor(((bound - (share.holds_working ? 0 : known.working)) / whole) * 100) / 100;
    return fit(image, machine, { GPU_MEMORY_UTILIZATION: python.float(Math.max(0, Math.min(most, largest(image, machine)))) });
  }

  /** Return the starts of two images beside each other on one machine, whose host keeps what it needs; null if there is none. */
  function together(first, second, machine) {
    const beside = (start) => {
      const plan = budget(start.judged);
      const bound = machine.unified ? machine.total - plan.known.host_reserve : machine.free;
      const other = within(second, { ...machine, free: machine.free - takes(plan) }, bound - takes(plan));
      return other.room ? [start, other] : null;
    };
    const own = fit(first, machine, {});
    if (!own.room) return null;
    // Each takes its share whatever it needs: if both are too much, the first gets what one user needs.
    const { need, fixed, asked, whole } = budget(own.judged);
    const least = Math.ceil(((fixed + need.perSequence + asked * (need.perToken ?? 0)) / whole) * 100) / 100;
    const small = () => fit(first, machine, { GPU_MEMORY_UTILIZATION: python.float(least) });
    return beside(own) ?? beside(small());
  }

  Object.assign(ImagePicker, { bestStart, imageOf, choose, together });
})();

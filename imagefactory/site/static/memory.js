/* Whether an image fits into the memory of a machine: one formula, that of imagefactory/site/starts.py. */
"use strict";
(() => {
  /** Return how a start uses a machine; `users` is for how many with the whole context each it has room, 0 if it is refused.
      Without a share it takes the image's own, or the largest that the machine allows if more users fit then. */
  function fit(needs, machine, { context = 0, users = 1, share = null, disk = false } = {}) {
    const { host, last, step } = startsData.reserves;
    const length = context || needs.context;
    const whole = needs.of_free ? machine.free : machine.total;
    const beside = needs.holds_working ? 0 : needs.working;
    const fixed = needs.weights + needs.drafter + (needs.holds_working ? needs.working : 0);
    const stage = disk && machine.unified ? needs.stage : 0;
    const usable = (machine.unified ? Math.min(machine.total - host, machine.free - last) : machine.free) - stage - beside;
    const most = Math.max(0, Math.floor((usable / whole) * 100)) / 100;
    const each = needs.per_user + length * needs.per_token;
    const computing = needs.per_passing * Math.max(0, Math.min(length - needs.window, needs.passing));
    const longest = (part) => {
      let left = part * whole - fixed - needs.per_user;
      const inside = Math.min(left / needs.per_token, needs.window);
      left -= inside * needs.per_token;
      const beyond = Math.min(left / (needs.per_token + needs.per_passing), needs.passing);
      left -= beyond * (needs.per_token + needs.per_passing);
      return Math.min(needs.longest, Math.max(0, Math.floor((inside + beyond + left / needs.per_token) / step) * step));
    };
    const room = (part) => (part > most || length > longest(part) ? 0 : Math.floor((part * whole - fixed - computing) / each));
    let chosen = share ?? needs.share;
    if (share === null && room(chosen) < users && room(most) > room(chosen)) chosen = most;
    const taken = chosen * whole;
    return { users: room(chosen), share: chosen, context: length, longest: longest(most), most, whole, fixed, each, computing, taken, beside, stage };
  }

  /** Return the images for a use on a machine with how they fit: those for all users first, then for some, then the rest. */
  function choose({ use, machine, context, users }) {
    const place = ({ fitted }) => (fitted.users >= users ? 0 : fitted.users ? 1 : 2);
    const images = startsData.images.filter((image) => image.default && image.memory && image.machine === machine.name);
    return startsData.order[use]
      .flatMap((model) => images.filter((image) => image.model === model))
      .map((image) => ({ image, fitted: fit(image.memory, machine, { context, users }) }))
      .sort((one, two) => place(one) - place(two));
  }

  /** Return how two images fit beside each other, the second started when the first is ready; null if they do not. */
  function together(first, second, machine) {
    const beside = (start) => {
      const takes = start.taken + start.beside;
      const left = { ...machine, free: machine.free - takes };
      if (!start.users || left.free <= 0) return null;
      const bound = (machine.unified ? machine.total - startsData.reserves.host : machine.free) - takes;
      const other = within(second, left, bound);
      return other.users ? [start, other] : null;
    };
    const start = fit(first, machine, { share: first.share });
    // A server takes its share whatever it needs: if both are too much, the first gets what one user needs.
    const least = Math.ceil(((start.fixed + start.computing + start.each) / start.whole) * 100) / 100;
    return beside(start) ?? beside(fit(first, machine, { share: least }));
  }

  /** Return a start that takes no more than a bound: with the image's own share, else with the largest below it. */
  function within(needs, machine, bound) {
    const start = fit(needs, machine, { share: needs.share });
    if (start.users && start.taken + start.beside <= bound) return start;
    const most = Math.floor(((bound - start.beside) / start.whole) * 100) / 100;
    return fit(needs, machine, { share: Math.max(0, Math.min(most, start.most)) });
  }

  globalThis.Memory = { fit, choose, together };
})();

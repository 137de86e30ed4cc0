// A polyfill: restate-sdk 1.17 needs Promise.withResolvers, which Node 20 lacks. All peers then run on the same Node.
Promise.withResolvers ??= function withResolvers() {
  const settlers = {};
  settlers.promise = new this((resolve, reject) => Object.assign(settlers, { resolve, reject }));
  return settlers;
};

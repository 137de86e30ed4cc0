// restate-sdk 1.17 asks for this one thing that Node 20 has not. With it all the peers run on the same Node.
Promise.withResolvers ??= function withResolvers() {
  const settlers = {};
  settlers.promise = new this((resolve, reject) => Object.assign(settlers, { resolve, reject }));
  return settlers;
};

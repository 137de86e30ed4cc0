/** Nothing yet: the shared PostgreSQL of the suite is started here. */
export function setup(): void {}

export { type CallOptions, OncegateClient, type OncegateOptions, type ToolDescription } from './client.ts';
export { aiSdkTools, langChainTools, mastraTools, openAiAgentsTools } from './frameworks.ts';
export { callKey } from './key.ts';
export { OncegateError, type Outcome, type Problem, words } from './outcome.ts';

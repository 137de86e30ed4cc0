export { type CallOptions, OncegateClient, type OncegateOptions, type ToolDescription } from './client.ts';
export { aiSdkTools, langChainTools, mastraTools, openAiAgentsTools } from './frameworks.ts';
export { callKey } from './key.ts';
export { type CallOutcome, explainOutcome, OncegateError, type Problem } from './outcome.ts';

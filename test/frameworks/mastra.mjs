// Mastra accepts the models of the AI SDK.
import './ai-sdk.mjs';

// Mastra takes the AI SDK's models as they are.
import './ai-sdk.mjs';

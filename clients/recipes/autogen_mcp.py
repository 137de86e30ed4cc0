import os

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ChatCompletionClient
from autogen_ext.tools.mcp import StreamableHttpServerParams, mcp_server_tools


async def answer(model: ChatCompletionClient, prompt: str) -> str:
    server = StreamableHttpServerParams(
        url=f"{os.environ['ONCEGATE_URL']}/mcp",
        headers={"authorization": f"Bearer {os.environ['ONCEGATE_KEY']}"},
    )
    tools = await mcp_server_tools(server)
    agent = AssistantAgent("assistant", model_client=model, tools=tools, reflect_on_tool_use=True)
    result = await agent.run(task=prompt)
    return str(result.messages[-1].content)

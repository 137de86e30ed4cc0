import os

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient


async def answer(model: str, prompt: str) -> str:
    mcp = MultiServerMCPClient(
        {
            "oncegate": {
                "transport": "streamable_http",
                "url": f"{os.environ['ONCEGATE_URL']}/mcp",
                "headers": {"authorization": f"Bearer {os.environ['ONCEGATE_KEY']}"},
            }
        }
    )
    agent = create_agent(model, await mcp.get_tools())
    state = await agent.ainvoke({"messages": [{"role": "user", "content": prompt}]})
    return state["messages"][-1].text

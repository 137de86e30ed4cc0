import os

from crewai import Agent
from crewai.mcp import MCPServerHTTP


def answer(model: str, prompt: str) -> str:
    oncegate = MCPServerHTTP(
        url=f"{os.environ['ONCEGATE_URL']}/mcp",
        headers={"authorization": f"Bearer {os.environ['ONCEGATE_KEY']}"},
        streamable=True,
    )
    agent = Agent(role="Assistant", goal="Do what is asked", backstory="Uses tools.", llm=model, mcps=[oncegate])
    return agent.kickoff(prompt).raw
